"""Watch the workers of a run, on all machines.

  dipaco monitor --run runs/quickstart

Expires leases, and reports silent workers, tasks that were given back, and objects that were
refused. A run does not need a monitor: workers that wait for work expire leases too. It ends when
the run is finished, or, after `dipaco drain`, when the last worker has left.
"""

import argparse

from dipaco.cli.options import add_metrics, add_run, with_metrics
from dipaco.cli.run_commands import stopped

HELP = "watch the workers of a run"
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
            while not run.ledger.queue.is_finished():
                for event in monitor.look():
                    log.write(event)
                if monitor.is_alone and run.ledger.meta.command().name == "drain":
                    return stopped(run.ledger)
                time.sleep(LOOK_SECONDS)
    return 0
