"""Tell the launchers of a run, from wherever it can be reached, how many workers to keep.

  dipaco scale --run runs/big --workers 32
  dipaco scale --run runs/big --workers 0 --launcher lab-17        only the one of that name

Each launcher keeps as many, until it is told otherwise or started again with another `--workers`.
Workers that are too many save the phase in hand part-way, and leave.
"""

import argparse

from dipaco.cli.options import add_run, check_count

HELP = "how many workers each launcher should keep"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("--workers", type=int, required=True, metavar="N")
    parser.add_argument("--launcher", metavar="NAME", help="default: all launchers of the run")


def run(options: argparse.Namespace) -> int:
    from dipaco.runs.opening import reading

    check_count("--workers", options.workers, 0)
    with reading(options.run) as run:
        run.ledger.meta.want_workers(options.workers, options.launcher)
        here = [m.name for m in run.ledger.members.list() if m.state == "here"]
    whom = f"launcher {options.launcher}" if options.launcher else "each launcher of the run"
    print(f"Told. Workers wanted of {whom}, from its next look on: {options.workers}.")
    if options.launcher and not any(name.startswith(f"{options.launcher}-") for name in here):
        print("It has no worker here now. If its name is another (it printed it), nothing changes.")
    return 0
