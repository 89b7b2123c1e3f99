"""Show the progress of a run. First come its progress, the time that is left and its workers in
short. Then come its activity or the reason for none, its workers, and each arm with a character for
every path. At last come modules with phase and digest, paths with step, loss and tokens,
evaluations, and tasks to do.

  dipaco status --run runs/quickstart
  dipaco status --run runs/quickstart --watch       its overview, again and again
  dipaco status --run runs/quickstart --json

For each worker it shows the task, its duration, and the participation (the share of the worker's
time in tasks that were recorded). It lists objects that were refused or damaged with the reason. It
says if workers are of several kinds, since results then depend on the worker that did a task. With
a quorum, it shows the contributions that each module's newest step took, and every late one.
"""

import argparse
import json
import shutil
import sys
import time
from typing import Any

from dipaco.cli.options import add_json, add_run
from dipaco.stopping import patience

HELP = "show the progress of a run"
WATCH_SECONDS = 2.0
PATIENCE_SECONDS = 10.0  # wait for a database or a store that is away, before the status says so


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add_json(parser)
    parser.add_argument(
        "--watch", action="store_true", help="repeat every two seconds until the run is finished"
    )


def run(options: argparse.Namespace) -> int:
    from dipaco.runs.opening import reading
    from dipaco.runs.reading.status import status_of

    with patience(PATIENCE_SECONDS), reading(options.run) as opened:
        while True:
            status = opened.ledger.look_at_one_moment(
                lambda: status_of(opened, with_sizes=not options.watch)
            )
            if options.json:
                print(json.dumps(status, indent=None if options.watch else 1), flush=True)
            else:
                _print(status, is_watched=options.watch)
            if not options.watch or status["finished"]:
                return 0
            time.sleep(WATCH_SECONDS)


def _print(status: dict[str, Any], *, is_watched: bool) -> None:
    from dipaco.observe.details import details
    from dipaco.observe.overview import fit, overview
    from dipaco.observe.terminal import say

    width, height = shutil.get_terminal_size()
    is_screen = is_watched and sys.stdout.isatty()
    lines = overview(status, width, height - 1 if is_screen else None)
    if not is_watched:
        lines += ["", *details(status)]
    elif is_screen:
        print("\x1b[H\x1b[2J", end="")
        lines = fit(lines, width, height - 1)
    say("\n".join(lines))
