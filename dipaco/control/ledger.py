"""The ledger: what a run remembers, in one SQL database."""

import contextlib
from collections.abc import Generator
from pathlib import Path

from dipaco.control.commit import Commit
from dipaco.control.facts import Facts
from dipaco.control.members import Members
from dipaco.control.meta import Meta
from dipaco.control.opening import open_database
from dipaco.control.progress import RunProgress
from dipaco.control.queue import Queue, add_tasks
from dipaco.control.quorums import Quorums
from dipaco.control.redos import Redos
from dipaco.control.retention import Retention
from dipaco.control.rollback import Rollbacks
from dipaco.control.scheduler import first_task
from dipaco.control.swarms import Swarms


class Ledger:
    """The memory of one run.

    Args:
      place: a file, or the URL of a database server.
      schema: the run's own name there.
      is_older_fine: its tables may be of an older version of this program; see `Meta.upgrade`.
    """

    def __init__(self, place: Path | str, schema: str = "", *, is_older_fine: bool = False):
        self._database = open_database(place, schema, is_older_fine=is_older_fine)
        self.meta = Meta(self._database)
        self.queue = Queue(self._database)
        self.facts = Facts(self._database)
        self.quorums = Quorums(self._database)
        self.commit = Commit(self._database, self.queue, self.quorums, self.facts)
        self.progress = RunProgress(self._database)
        self.retention = Retention(self._database)
        self.redos = Redos(self._database, self.queue)
        self.rollbacks = Rollbacks(self._database)
        self.members = Members(self._database)
        self.swarms = Swarms(self._database)

    def close(self) -> None:
        self._database.close()

    def start(self, meta: dict[str, str]) -> None:
        """Begins a run: remembers what it is and makes its first task due."""
        with self._database.transaction():
            for key, value in meta.items():
                self._database.change("put_meta", key=key, value=value)
            add_tasks(self._database, [first_task()])
        self._database.fold()  # it may be put in its place now

    def fork(self, file: Path, meta: dict[str, str]) -> None:
        """Begins another run, in a file, with all that this one has recorded; `meta` says what is
        different about it. Whether what was recorded would be the same there is the caller's to
        know.
        """
        self._database.copy_to(file)
        with open_ledger(file) as other:
            with other._database.transaction():
                for key, value in meta.items():
                    other._database.change("change_meta", key=key, value=value)
            other._database.fold()

    @contextlib.contextmanager
    def at_one_moment(self) -> Generator[None]:
        """What is read inside is of one moment, whatever others write meanwhile."""
        with self._database.snapshot():
            yield


@contextlib.contextmanager
def open_ledger(place: Path | str, schema: str = "") -> Generator[Ledger]:
    """A ledger, closed at the end."""
    ledger = Ledger(place, schema)
    try:
        yield ledger
    finally:
        ledger.close()
