"""Make a run one of this version of the program.

  dipaco upgrade --run runs/quickstart

Sends the run's workers away in order (their phases are saved part-way), waits until they have left,
brings the ledger's tables to this version, and pins the version: a worker of another one is then
refused with a sentence. Afterwards start workers of this version. Interrupted, it leaves the run as
it was; killed by force, told to drain, until another `upgrade`, or `resume`.
"""

import argparse

from dipaco.cli.options import DAY_SECONDS, add_run, check_between
from dipaco.workers.signals import on_sigterm

HELP = "make a run one of this version of the program"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument(
        "--wait-seconds",
        type=float,
        default=180.0,
        metavar="S",
        help="how long its workers have to leave (default: 180)",
    )


def run(options: argparse.Namespace) -> int:
    import dipaco
    from dipaco.runs.upgrade import upgrade

    check_between("--wait-seconds", options.wait_seconds, 0.0, 30 * DAY_SECONDS)
    told: list[bool] = []  # not an exception from a handler: it could come between order and `try`
    with on_sigterm(lambda: told.append(True), on_ctrl_c=True):
        done = upgrade(options.run, options.wait_seconds, lambda: bool(told))
    tables = f"tables {done.tables_before} to {done.tables_now}"
    if done.tables_before == done.tables_now:
        tables = f"tables are of version {done.tables_now}, as they were"
    print(f"The run was of dipaco {done.before} and is of {dipaco.__version__} now; {tables}.")
    return 0
