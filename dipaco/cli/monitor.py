"""Watch over the workers of a run, wherever they are.

  dipaco monitor --run runs/quickstart

Ends leases that ran out, says which workers fell silent and which tasks went back, and what they
may have left behind. Every worker that waits for work does the first as well, so a run gets on
without a monitor; with one, it is told. Ends when the run is finished; where it is told to drain,
after the last worker.
"""

import argparse

from dipaco.cli.options import add_metrics, add_run, with_metrics
from dipaco.cli.run_commands import stop_message

HELP = "watch over the workers of a run"
LOOK_SECONDS = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add_metrics(parser)


def run(options: argparse.Namespace) -> int:
    import sys
    import time

    from dipaco.observe.writers import JsonLines, Lines, Several
    from dipaco.runs.opening import reading
    from dipaco.workers.monitor import Monitor

    with reading(options.run) as run:
        log = Several(Lines(sys.stdout), JsonLines(run.layout.events, clock=time.time))
        monitor = Monitor(run.ledger)
        with log, with_metrics(run, options, None):
            while run.ledger.queue.unfinished():
                for event in monitor.look():
                    log.write(event)
                if monitor.is_alone and run.ledger.meta.command().name == "drain":
                    print(stop_message(run.ledger))
                    break
                time.sleep(LOOK_SECONDS)
    return 0
