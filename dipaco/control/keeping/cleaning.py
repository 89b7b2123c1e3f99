"""Cleaning: a finished run gives up what it would go on from, for ever.

That it does is recorded before the first byte is deleted, in the transaction that makes sure that
it is finished. So no run is gone back to while its bytes are being deleted, and no release is named
whose modules are gone. A cleaning that was killed is done again, from its beginning.
"""

import json
from collections.abc import Mapping

from dipaco.control.database.contract import Database
from dipaco.control.database.retry import retried
from dipaco.control.errors import CannotClean, RunCleaned
from dipaco.plural import are, counted, listed

KEY = "cleaned"


class Cleanings:
    """The cleanings of one run."""

    def __init__(self, database: Database):
        self._database = database

    def removed(self) -> dict[str, int] | None:
        """Kind -> bytes that the first cleaning found to remove. None = there was none."""
        row = self._database.one("get_meta", key=KEY)
        return None if row is None else json.loads(row[0])

    def check(self) -> None:
        """Raises `CannotClean` while a task is not done."""
        held = self._database.rows("claims")
        if held:
            workers = sorted({row[4] for row in held})
            raise CannotClean(problem=f"it is worked on by {listed(workers, 3)}.")
        unfinished = len(self._database.rows("list_tasks"))
        if unfinished:
            left = f"{counted(unfinished, 'task')} {are(unfinished)} not done"
            problem = f"{left}, and what would be removed is needed to go on. Finish it first."
            raise CannotClean(problem=problem)

    @retried
    def record(self, removed: Mapping[str, int]) -> None:
        """Records that the run cannot go on, and that each arm has its newest release alone.

        Args:
          removed: kind -> bytes that are going to be deleted.

        Raises:
          CannotClean: a task is not done. Nothing was changed.
        """
        with self._database.transaction():
            lock_whole_run(self._database)
            self.check()
            self._database.change("drop_older_releases")
            self._database.change("remember_meta", key=KEY, value=json.dumps(removed))


def lock_whole_run(database: Database) -> None:
    """Inside a transaction that decides whether a run may still be gone back to: no two run at
    once.
    """
    database.lock("WholeRun")


def refuse_cleaned(database: Database) -> None:
    """Raises `RunCleaned`."""
    if database.one("get_meta", key=KEY) is not None:
        raise RunCleaned()
