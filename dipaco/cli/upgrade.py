"""Bring a run to this version of the program.

  dipaco upgrade --run runs/quickstart

Drains the run (workers save their phases part-way and leave), waits until all have left, and pins
the run to this version: workers of other versions are then refused. Afterwards start workers of
this version. A run that was told to pause or to drain still is, until `resume`. An upgrade that is
interrupted or fails before it pins the version leaves the run as it was, and workers may go on. An
upgrade that is killed leaves the run draining, until `resume`. A ledger with tables of another
version is refused.
"""

import argparse

from dipaco.cli.options import DAY_SECONDS, add_run, check_between
from dipaco.cli.run_commands import print_order
from dipaco.stopping import on_sigterm

HELP = "bring a run to this version of the program"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument(
        "--wait-seconds",
        type=float,
        default=180.0,
        metavar="S",
        help="how long to wait for its workers to leave (default: 180)",
    )


def run(options: argparse.Namespace) -> int:
    from dipaco.runs.upgrade import upgrade
    from dipaco.runs.version import described_version

    check_between("--wait-seconds", options.wait_seconds, 0.0, 30 * DAY_SECONDS)
    # Not an exception from the handler: it could come between the drain command and its `try`.
    signals: list[bool] = []
    with on_sigterm(lambda: signals.append(True), on_ctrl_c=True):
        done = upgrade(options.run, options.wait_seconds, lambda: bool(signals))
    print(f"The run was of dipaco {done.before} and is of {described_version()} now.")
    print_order(done.command, options.run)
    return 0
