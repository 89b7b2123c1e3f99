"""Have tasks that failed done again, from any machine that reaches the run.

  dipaco retry --run runs/big --all
  dipaco retry --run runs/big train modular path 3 phase 7       as `dipaco status` writes it

A task fails when it has ended with an error three times in a row, or its process has died ten times
in a row. Other tasks go on. Put the cause right first: `dipaco status` names it. The failures of
these tasks are forgotten. Tasks that wait to be tried again by themselves are tried at once.

Running workers take the tasks. If all have ended, start them again.
"""

import argparse

from dipaco.cli.errors import NoSuchFailure, OptionMissing
from dipaco.cli.options import add_run

HELP = "have tasks that failed done again"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("task", nargs="*", metavar="TASK", help="as `dipaco status` writes it")
    parser.add_argument("--all", action="store_true", help="all that have failed")


def run(options: argparse.Namespace) -> int:
    from dipaco.runs.opening import reading

    wanted = " ".join(options.task)
    if bool(wanted) == options.all:
        raise OptionMissing(option="TASK", expected="one task, or `--all`")
    with reading(options.run) as run:
        failures = run.ledger.failures
        known = {str(each.task): each.task for each in failures.list()}
        if wanted and wanted not in known:
            raise NoSuchFailure(task=wanted, known="; ".join(known) or "none")
        again = failures.retry(known[wanted] if wanted else None)
        workers = run.ledger.members.here()
    for task in again:
        print(f"Tried again: {task}")
    print(f"Tasks that are tried again: {len(again)}. Workers here: {len(workers)}.")
    return 0
