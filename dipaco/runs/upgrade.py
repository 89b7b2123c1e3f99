"""Upgrade: pins a run to this version of the program, if it reads the run's tables."""

import json
import time
from collections.abc import Callable
from typing import NamedTuple

from dipaco import overrides
from dipaco.control.ledger import Ledger
from dipaco.errors import LedgerDamaged, WorkersActive
from dipaco.plural import are, listed
from dipaco.runs.opening import database_location_of
from dipaco.runs.version import described_version
from dipaco.stopping import STOPPING_SECONDS, patience
from dipaco.store.address import Address

POLL_SECONDS = 0.5


class Upgraded(NamedTuple):
    """A run before and after."""

    before: str  # version of the program
    command: str  # given to its workers now


def upgrade(
    where: Address, wait_seconds: float, should_stop: Callable[[], bool] = lambda: False
) -> Upgraded:
    """Drains the run, waits until its workers have left or are seen to be dead, pins it, and ends
    the claims that are left: a worker that wakes meanwhile is of the old program. Afterwards the
    command holds that its workers followed before, or one that was given meanwhile.

    Raises:
      KeyboardInterrupt: `should_stop` while waiting. The run is left as it was.
      WorkersActive: a worker has not left after `wait_seconds`. The run is left as it was.
      BadSetting, SettingsDisagree: this version does not take its config.
      LedgerVersion: its tables are of another version. Nothing was changed.
      NoSuchRun.
    """
    location = database_location_of(where)
    ledger = Ledger(*location)
    try:
        before, config = ledger.meta.command(), ledger.meta.get("config")
        if before.version is None or config is None:
            raise LedgerDamaged(file=location.name, problem="it does not say which run it is of")
        overrides.from_tree(json.loads(config))  # else no verb could open the run any more
        ledger.meta.set_command("drain")
        try:
            _wait_until_all_have_left(ledger, wait_seconds, should_stop)
            ledger.meta.pin(described_version(), before.name, ledger.reaper.end_all)
        except BaseException:
            with patience(STOPPING_SECONDS):
                if ledger.meta.command().name == "drain":
                    ledger.meta.set_command(before.name)
            raise
        ledger.reaper.reap()  # workers that held nothing
        return Upgraded(before.version, ledger.meta.command().name)
    finally:
        ledger.close()


def _wait_until_all_have_left(
    ledger: Ledger, wait_seconds: float, should_stop: Callable[[], bool]
) -> None:
    deadline = time.monotonic() + wait_seconds
    while here := _active_workers(ledger):
        if time.monotonic() > deadline:
            raise WorkersActive(what="An upgrade", who=here)
        if should_stop():
            raise KeyboardInterrupt
        time.sleep(POLL_SECONDS)


def _active_workers(ledger: Ledger) -> str:
    """A phrase, empty if none is. A worker that is silent for a lease, or whose process has ended,
    does not count: it is refused when it comes back.
    """
    names = ledger.reaper.active()
    return f"{listed(names, 3)} {are(len(names))} here" if names else ""
