"""Going back: a run is at an earlier phase again, as it was recorded.

What was recorded after it is *set aside*: its rows leave their tables for one of their own, as JSON
with the number of the rollback, and count no more; the tasks that they led to wait to be made due
again. Tables change in one transaction; bytes are not touched.
"""

import json
from collections.abc import Iterable
from typing import NamedTuple

from dipaco.control.database import Database
from dipaco.control.queue import add_tasks
from dipaco.control.retry import retried
from dipaco.control.tasks import Task
from dipaco.errors import WorkersActive

TABLES = (
    *("modules", "contributions", "taken", "quorums", "trained", "partial_snapshots"),
    *("labels", "checks", "scores", "releases", "evaluations", "stages"),
)


class Rollback(NamedTuple):
    """One return to an earlier phase."""

    arm: str
    phase: int  # that the arm went back to
    set_aside: dict[str, int]  # kind of fact -> how many


class Rollbacks:
    """Of one run."""

    def __init__(self, database: Database):
        self._database = database

    @retried
    def go_back(self, arm: str, phase: int, due: Iterable[Task]) -> dict[str, int]:
        """An arm is at the start of `phase` again; how many rows of each table were set aside.

        Args:
          arm: whose modules.
          phase: that all of them have reached.
          due: the tasks to go on with.

        Raises:
          WorkersActive: somebody holds a lease. Nothing was changed.
        """
        database, of = self._database, {"arm": arm, "phase": phase}
        with database.transaction():
            # First: who would claim one of these now waits for us, and then finds it gone; who has
            # claimed one is seen below.
            database.change("aside_tasks", **of)
            refuse_while_claimed(database, "Going back")
            ((newest,),) = database.rows("newest_rollback")
            counts = {}
            for table in TABLES:
                rows = database.rows(f"aside_{table}", **of)
                counts[table] = len(rows)
                for row in rows:
                    database.change(
                        "put_aside", rollback=newest + 1, **of, kind=table, body=json.dumps(row)
                    )
            add_tasks(database, due)
        return {table: count for table, count in counts.items() if count}

    def list(self) -> list[Rollback]:
        """Every rollback of the run, the first one first."""
        found: dict[int, Rollback] = {}
        for number, arm, phase, kind, count in self._database.rows("rollbacks"):
            found.setdefault(number, Rollback(arm, phase, {})).set_aside[kind] = count
        return list(found.values())


def refuse_while_claimed(database: Database, what: str) -> None:
    """Inside a transaction: raises `WorkersActive` where somebody holds a lease."""
    database.rows("drop_expired_claims", epoch=database.epoch)
    database.change("reopen_tasks")
    held = database.rows("claims")
    if held:
        some = ", ".join(sorted({row[4] for row in held})[:3])
        who = f"{some} hold{'s' * (len(held) == 1)} {len(held)} task{'s' * (len(held) > 1)}"
        raise WorkersActive(what=what, who=who)
