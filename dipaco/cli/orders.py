"""Orders to everybody who works on a run, wherever they are: each hears them within a quarter of a
lease.
"""

import argparse
from typing import TYPE_CHECKING

from dipaco.cli.runs import add_run

if TYPE_CHECKING:
    from dipaco.control.ledger import Ledger


class OrderVerb:
    """A verb that writes an order into the ledger."""

    def __init__(self, verb: str, order: str, does: str, more: str):
        self._order, self._does = order, does
        self.HELP = f"all workers of a run: {does}"
        self.__doc__ = f"Tell all workers of a run: {does}.\n\n  dipaco {verb} --run DIR\n\n{more}"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_run(parser)

    def run(self, options: argparse.Namespace) -> int:
        from dipaco.runs.run import reading

        with reading(options.run) as run:
            run.ledger.order(self._order)
            workers = [member for member in run.ledger.members.list() if member.state == "here"]
        print(f"Ordered. Workers here: {len(workers)}. Each will {self._does}.")
        return 0


PAUSE = OrderVerb(
    "pause",
    "pause",
    "finish the task in hand, take no other, and wait",
    "`dipaco resume` lets them go on.",
)
RESUME = OrderVerb("resume", "run", "go on", "After `pause` or `drain`.")
DRAIN = OrderVerb(
    "drain",
    "drain",
    "save the phase in hand part-way, and leave",
    "Workers that start afterwards leave again at once, until `dipaco resume`.",
)


def stopped_in_order(ledger: "Ledger") -> str:
    """A sentence for whoever finds a process ended before its run: how the run goes on."""
    order = ledger.orders().order
    if order == "run":
        return "Stopped in order. The same command goes on from here."
    return (
        f"Stopped in order. The run was told to {order}: `dipaco resume` first, then the same "
        "command."
    )
