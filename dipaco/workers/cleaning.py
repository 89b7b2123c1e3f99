"""Cleaning: removes what a finished run keeps for going on, going back or comparing.

The newest release of every arm, the base model, which routes, and all that the report, `inspect`
and the tables of sweeps are made from are left. The ledger says that the run gave up the rest
before the first byte is deleted (`control/keeping/cleaning.py`). Killed anywhere, the same command
goes on.
"""

from typing import NamedTuple

from dipaco.config import MODULAR
from dipaco.errors import RunBusy
from dipaco.runs.folder_lock import folder_lock
from dipaco.runs.opening import open_run
from dipaco.runs.reading.sizes import sizes_of, stored_of
from dipaco.runs.run import Run
from dipaco.store.address import Address
from dipaco.store.inventory import by_kind
from dipaco.store.layout import CONTRIBUTIONS, MODULES, OUTER_STATES, SHARD_TOKENS, SNAPSHOTS
from dipaco.workers.keeping import delete

FOLDERS = (SNAPSHOTS, CONTRIBUTIONS, OUTER_STATES, MODULES, SHARD_TOKENS)


class Cleaning(NamedTuple):
    """The bytes that a cleaning removes, and the rest."""

    removed: dict[str, int]  # kind -> bytes
    left: dict[str, int]
    releases: dict[str, int]  # arm -> phase of the release that is left
    phase: int  # other runs can start from it


def clean(where: Address, *, is_dry: bool = False) -> Cleaning:
    """Removes it, or only says what would be removed.

    Raises:
      RunBusy: a process of this machine works on the run.
      CannotClean: the run is not finished, or another machine works on it.
      And what `open_run` raises. Nothing was removed.
    """
    run = open_run(where)
    try:
        run.ledger.cleanings.check()
        if is_dry:
            return _planned(run, _superfluous(run))
        with folder_lock(where) as lock:
            if not lock.is_exclusive:
                raise RunBusy(folder=where)
            superfluous = _superfluous(run)
            planned = _planned(run, superfluous)
            # First: from here on nothing reads these bytes.
            run.ledger.cleanings.record(planned.removed)
            delete(run, lambda: superfluous - _needed(run), lambda name: _remove(run, name))
            return planned._replace(left=sizes_of(run))
    finally:
        run.ledger.close()


def _superfluous(run: Run) -> set[str]:
    return run.objects.names(*FOLDERS) - _needed(run)


def _needed(run: Run) -> set[str]:
    return run.ledger.retention.released(run.plan, is_newest_only=True)


def _remove(run: Run, name: str) -> None:
    run.objects.delete(name)
    run.objects.delete_folder_if_empty(name)


def _planned(run: Run, superfluous: set[str]) -> Cleaning:
    stored = stored_of(run)
    goes = {name: at for name, at in stored.items() if name in superfluous}
    stays = {name: at for name, at in stored.items() if name not in superfluous}
    return Cleaning(
        removed=by_kind(goes),
        left=by_kind(stays),
        releases=dict(sorted(run.ledger.facts.releases())),  # the newest of an arm is the last
        phase=run.plan.arm(MODULAR).phases,
    )
