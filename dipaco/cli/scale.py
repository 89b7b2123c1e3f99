"""Set how many workers the launchers of a run keep, from any machine that reaches the run.

  dipaco scale --run runs/big --workers 32
  dipaco scale --run runs/big --workers 0 --launcher lab-17        only the launcher of that name

Each launcher keeps this many until the next `scale`, or until it is started again with another
`--workers`. Surplus workers save their phase part-way and leave.
"""

import argparse

from dipaco.cli.options import add_run, check_between

HELP = "set how many workers each launcher keeps"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("--workers", type=int, required=True, metavar="N")
    parser.add_argument("--launcher", metavar="NAME", help="default: all launchers of the run")


def run(options: argparse.Namespace) -> int:
    from dipaco.control.process_id import ProcessId
    from dipaco.launch.errors import NoLauncher
    from dipaco.runs.opening import reading

    check_between("--workers", options.workers, 0)
    with reading(options.run) as run:
        started = run.ledger.meta.launchers()
        asked = set(started) if options.launcher is None else {options.launcher} & set(started)
        if not asked:
            raise NoLauncher(run=options.run, known=", ".join(started) or "none")
        run.ledger.meta.want_workers(options.workers, options.launcher)
    whom = f"launcher {options.launcher}" if options.launcher else "each launcher of the run"
    print(f"Recorded. Workers wanted of {whom}: {options.workers}.")
    if all(ProcessId.parse(started[name]).is_over() for name in asked):
        print(f"None is at work now: {', '.join(sorted(asked))} follows when it is started again.")
    return 0
