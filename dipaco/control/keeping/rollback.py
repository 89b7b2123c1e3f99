"""Rollback: a run is at an earlier phase again, as it was recorded.

Facts that were recorded later are *set aside*: their rows move to a table of their own, as JSON
with the number of the rollback, and count no more. The tasks that they led to wait to be made due
again. Tables change in one transaction; bytes are not touched.
"""

import json
import uuid
from collections.abc import Iterable
from typing import NamedTuple

from dipaco.control.claims.failures import COUNTED
from dipaco.control.claims.history import note_event
from dipaco.control.claims.queue import add_tasks
from dipaco.control.claims.silent_workers import Reaper
from dipaco.control.database.contract import Database
from dipaco.control.database.retry import retried
from dipaco.control.keeping.cleaning import lock_whole_run, refuse_cleaned
from dipaco.control.keeping.retention import GOING_BACK, deleting_workers, stop_deletions
from dipaco.control.planning.tasks import Task
from dipaco.errors import WorkersActive
from dipaco.plural import are, listed

ASIDE = {  # table -> the query that sets aside its facts
    "modules": "aside_after",
    "contributions": "aside_since",
    "taken": "aside_taken",
    "quorums": "aside_since",
    "trained": "aside_since",
    "partial_snapshots": "aside_since",
    "labels": "aside_after",
    "checks": "aside_after",
    "scores": "aside_after",
    "releases": "aside_after",
    "evaluations": "aside_after",
    "samples": "aside_after",
    "stages": "aside_stages",
}
MOST_AT_ONCE = 1000  # facts that one statement sets aside


class Rollback(NamedTuple):
    """One return to an earlier phase."""

    arm: str
    phase: int  # The arm went back to it.
    set_aside: dict[str, int]  # kind of fact -> how many


class Rollbacks:
    """Rollbacks of one run."""

    def __init__(self, database: Database, reaper: Reaper):
        self._database, self._reaper = database, reaper

    def deleting_workers(self) -> list[str]:
        """Names of the workers that are deleting objects, without those known to be gone."""
        return deleting_workers(self._database)

    @retried
    def begin(self) -> str:
        """To be called before the bytes are checked that an arm would go on from. Returns a token
        for `go_back`. Raises `WorkersActive`: a worker is deleting objects.
        """
        token = uuid.uuid4().hex
        with self._database.transaction(is_durable=False):
            lock_whole_run(self._database)
            _stop_deletions(self._database)
            self._database.change("change_meta", key=GOING_BACK, value=token)
        return token

    @retried
    def go_back(
        self, arm: str, phase: int, due: Iterable[Task], token: str | None = None
    ) -> dict[str, int] | None:
        """Puts an arm back to the start of `phase`. Returns the rows set aside, by table. None if
        objects were deleted since `begin` gave the token: nothing was changed.

        Args:
          phase: one that all modules of the arm have reached.

        Raises:
          WorkersActive: a worker holds a lease, or is deleting objects. Nothing was changed.
          RunCleaned: `dipaco clean` has removed what training would go on from. As above.
        """
        self._reaper.reap()
        database, of = self._database, {"arm": arm, "phase": phase}
        with database.transaction():
            lock_whole_run(database)
            refuse_cleaned(database)
            if token is not None and database.one("get_meta", key=GOING_BACK) != (token,):
                return None
            _stop_deletions(database)
            # First: from here on a claim of these tasks waits for this transaction and then finds
            # none. A claim made before is seen below.
            database.change("aside_tasks", **of)
            for table in COUNTED:
                database.change(f"forget_aside {table}")
            refuse_while_claimed(database, "Going back")
            ((newest,),) = database.rows("newest_rollback")
            counts = {}
            for table, query in ASIDE.items():
                rows = database.rows(f"{query} {table}", **of)
                counts[table] = len(rows)
                for first in range(0, len(rows), MOST_AT_ONCE):
                    bodies = json.dumps(list(map(json.dumps, rows[first : first + MOST_AT_ONCE])))
                    database.change(
                        "put_aside", rollback=newest + 1, **of, kind=table, bodies=bodies
                    )
            note_event(database, "rollback", reason=f"{arm} to phase {phase}")
            add_tasks(database, due)
        return {table: count for table, count in counts.items() if count}

    @retried
    def undo(self, arm: str, path: int, phase: int, step: int) -> None:
        """Puts a path back to `step` of its phase: the first, or one with a partial snapshot.
        Raises `WorkersActive`, `RunCleaned`.
        """
        self._reaper.reap()
        database, place = self._database, {"arm": arm, "path": path}
        with database.transaction():
            lock_whole_run(database)
            refuse_cleaned(database)
            refuse_while_claimed(database, "Undoing")
            for row in database.rows("get_partial_snapshots", **place, phase=phase):
                if row[3] > step:
                    database.change("drop_partial_snapshot", **place, phase=phase, step=row[3])
            database.change("drop_swarm_steps", **place, step=step)
            note_event(database, "rollback", reason=f"path {path} of {arm} to step {step}")

    def list(self) -> list[Rollback]:
        """Every rollback of the run, the first one first."""
        found: dict[int, Rollback] = {}
        for number, arm, phase, kind, count in self._database.rows("rollbacks"):
            found.setdefault(number, Rollback(arm, phase, {})).set_aside[kind] = count
        return list(found.values())


def _stop_deletions(database: Database) -> None:
    """Inside a transaction that holds the lock of the whole run. Raises `WorkersActive`."""
    if active := deleting_workers(database):
        who = f"{listed(active, 3)} {are(len(active))} deleting what is not needed any more"
        raise WorkersActive(what="Going back", who=who)
    stop_deletions(database)


def refuse_while_claimed(database: Database, what: str) -> None:
    """Inside a transaction: raises `WorkersActive` if a worker holds a lease."""
    held = database.rows("claims")
    if held:
        some = listed(sorted({row[4] for row in held}), 3)
        who = f"{some} hold{'s' * (len(held) == 1)} {len(held)} task{'s' * (len(held) > 1)}"
        raise WorkersActive(what=what, who=who)
