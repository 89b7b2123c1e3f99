"""Upgrade: a run goes on with another version of the program, and with no other from then on."""

import time
from collections.abc import Callable
from typing import NamedTuple

import dipaco
from dipaco.control.ledger import Ledger
from dipaco.control.queue import LEASE_SECONDS
from dipaco.errors import LedgerDamaged, WorkersActive
from dipaco.runs.opening import database_location_of
from dipaco.store.address import Address

LOOK_SECONDS = 0.5


class Upgraded(NamedTuple):
    """What became of a run."""

    before: str  # version of the program
    tables_before: int
    tables_now: int


def upgrade(
    where: Address, wait_seconds: float, is_told_to_stop: Callable[[], bool] = lambda: False
) -> Upgraded:
    """Drains the run, waits, brings its tables to this program's version, and pins that.

    Raises:
      KeyboardInterrupt: told to stop before everybody had left. The run goes on as it was.
      WorkersActive: somebody has not left after `wait_seconds`. The run goes on as it was.
      NoSuchRun, LedgerVersion.
    """
    place = database_location_of(where)
    ledger = Ledger(*place, allows_older=True)
    try:
        before = ledger.meta.command()
        if before.version is None:
            raise LedgerDamaged(file=place.name, problem="it does not say which run it is of")
        ledger.meta.set_command("drain")
        try:
            _wait_until_nobody_is_here(ledger, wait_seconds, is_told_to_stop)
        except BaseException:
            ledger.meta.set_command(before.name)
            raise
        return Upgraded(before.version, *ledger.meta.upgrade(dipaco.__version__))
    finally:
        ledger.close()


def _wait_until_nobody_is_here(
    ledger: Ledger, wait_seconds: float, is_told_to_stop: Callable[[], bool]
) -> None:
    deadline = time.monotonic() + wait_seconds
    while here := _who_is_here(ledger):
        if time.monotonic() > deadline:
            raise WorkersActive(what="An upgrade", who=here)
        if is_told_to_stop():
            raise KeyboardInterrupt
        time.sleep(LOOK_SECONDS)


def _who_is_here(ledger: Ledger) -> str:
    """A phrase; nothing where nobody is. Who has been silent for a lease is not here, and is
    refused when it comes back.
    """
    ledger.queue.reap()
    names = {held.worker for held in ledger.queue.held()} | {
        member.name
        for member in ledger.members.list()
        if member.state == "here" and member.silent_seconds < LEASE_SECONDS
    }
    some = ", ".join(sorted(names)[:3]) + (", ..." if len(names) > 3 else "")
    return f"{some} {'is' if len(names) == 1 else 'are'} here" if names else ""
