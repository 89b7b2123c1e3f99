"""Tell the launchers of a run, from wherever it can be reached, how many workers to keep.

  dipaco scale --run runs/big --workers 32
  dipaco scale --run runs/big --workers 0 --launcher lab-17        only the one of that name

Each launcher keeps as many, until it is told otherwise or started again with another `--workers`.
Workers that are too many save the phase in hand part-way, and leave.
"""

import argparse

from dipaco.cli.runs import add_run
from dipaco.errors import BadCount

HELP = "how many workers each launcher should keep"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("--workers", type=int, required=True, metavar="N")
    parser.add_argument("--launcher", metavar="NAME", help="default: all launchers of the run")


def run(options: argparse.Namespace) -> int:
    from dipaco.runs.run import reading

    if options.workers < 0:
        raise BadCount(option="--workers", given=options.workers, expected="0 or more")
    with reading(options.run) as run:
        run.ledger.want_workers(options.workers, options.launcher)
    whom = f"launcher {options.launcher}" if options.launcher else "each launcher of the run"
    print(f"Told. Workers wanted of {whom}, from its next look on: {options.workers}.")
    return 0
