"""`pause`, `resume`, `drain`: commands to all workers of a run, written into its ledger.

Every worker reads them within a quarter of a lease.
"""

import argparse
import shlex
from typing import TYPE_CHECKING

from dipaco.cli.options import add_run
from dipaco.errors import NOT_NOW
from dipaco.stopping import was_told

if TYPE_CHECKING:
    from dipaco.control.ledger import Ledger


class CommandVerb:
    """A verb that writes a run command into the ledger."""

    def __init__(self, verb: str, command: str, does: str, more: str):
        self._command, self._does = command, does
        self.HELP = f"all workers of a run: {does}"
        self.__doc__ = f"Tell all workers of a run: {does}.\n\n  dipaco {verb} --run DIR\n\n{more}"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_run(parser)

    def run(self, options: argparse.Namespace) -> int:
        from dipaco.runs.opening import reading

        with reading(options.run) as run:
            run.ledger.meta.set_command(self._command)
            workers = run.ledger.members.here()
        print(f"Recorded. Workers here: {len(workers)}. Each will {self._does}.")
        return 0


PAUSE = CommandVerb(
    "pause",
    "pause",
    "finish its current task, take no other, and wait",
    "`dipaco resume` lets them continue.",
)
RESUME = CommandVerb("resume", "run", "continue", "After `pause` or `drain`.")
DRAIN = CommandVerb(
    "drain",
    "drain",
    "save its current phase part-way, and leave",
    "Workers that start afterwards leave again at once, until `dipaco resume`.",
)


def print_order(command: str, run: object) -> None:
    """Prints the command that lets workers of a run go on, if it was told something else."""
    if command != "run":
        name = shlex.quote(str(run))
        print(f"It was told to {command}: `dipaco resume --run {name}` lets workers continue.")


def stopped(ledger: "Ledger") -> int:
    """Prints how to continue a run whose process ended before the run did. Returns the exit code of
    that process, which tells those who start processes again that a drained one may come back. An
    upgrade may have ended its drain already.
    """
    command = ledger.meta.command().name
    first = "" if command == "run" else f"The run was told to {command}: `dipaco resume` first. "
    print(f"Stopped. {first}The same command goes on from here.")
    return 0 if was_told() else NOT_NOW
