"""The ledger: one SQL database with all that is recorded of a run, and the parts that read and
write it.
"""

import contextlib
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, TypeVar

from dipaco.control.claims.failures import Failures
from dipaco.control.claims.history import History
from dipaco.control.claims.queue import Queue, add_tasks
from dipaco.control.claims.silent_workers import Reaper
from dipaco.control.database.contract import Database
from dipaco.control.database.retry import with_retry
from dipaco.control.errors import BadDatabase
from dipaco.control.facts.commit import Commit
from dipaco.control.facts.facts import Facts
from dipaco.control.facts.progress import RunProgress
from dipaco.control.facts.quorums import Quorums
from dipaco.control.facts.redos import Redos
from dipaco.control.keeping.cleaning import Cleanings
from dipaco.control.keeping.retention import Retention
from dipaco.control.keeping.rollback import Rollbacks
from dipaco.control.members.members import Members
from dipaco.control.members.meta import Meta
from dipaco.control.members.swarms import Swarms
from dipaco.control.planning.scheduler import first_tasks
from dipaco.files import PRIVATE, install_file

R = TypeVar("R")


class Ledger:
    """The facts and tasks of one run."""

    def __init__(self, location: Path | str, schema: str = ""):
        self._use(open_database(location, schema))

    def _use(self, database: Database) -> None:
        self._database = database
        self.meta = Meta(self._database)
        self.queue = Queue(self._database)
        self.reaper = Reaper(self._database)
        self.failures = Failures(self._database)
        self.facts = Facts(self._database)
        self.quorums = Quorums(self._database)
        self.commit = Commit(self._database, self.queue, self.quorums, self.facts)
        self.progress = RunProgress(self._database)
        self.retention = Retention(self._database)
        self.redos = Redos(self._database)
        self.rollbacks = Rollbacks(self._database, self.reaper)
        self.cleanings = Cleanings(self._database)
        self.members = Members(self._database)
        self.history = History(self._database)
        self.swarms = Swarms(self._database)

    def for_thread(self) -> "Ledger":
        """The same ledger for another thread of this process, which closes it. See `Database`."""
        other = Ledger.__new__(Ledger)
        other._use(self._database.for_thread())
        return other

    def close(self) -> None:
        self._database.close()

    def select(self, text: str, **values: Any) -> list[tuple]:
        """The rows of a statement of another room (`dashboard/*.sql`), which reads only."""
        return self._database.select(text, **values)

    def wall_clock(self) -> float:
        """The wall clock of the database's machine, in seconds."""
        return self._database.rows("wall_clock")[0][0]

    def start(self, meta: dict[str, str], slices: int = 0) -> None:
        """Starts a run: stores its values, and makes its first tasks due, one for each slice of its
        text. 0 = the text is prepared already.
        """
        with self._database.transaction():
            for key, value in meta.items():
                self._database.change("put_meta", key=key, value=value)
            add_tasks(self._database, first_tasks(slices))
        self._database.fold()  # the file may be moved now

    def drop(self) -> None:
        """Removes everything, on a server: another process began the run at the same moment."""
        self._database.drop()

    def fork(self, file: Path, meta: dict[str, str]) -> None:
        """Starts another run, in a file, with everything that this one has recorded. `meta` holds
        the values that differ. The caller guarantees that both runs would record the same facts.
        """
        self._database.copy_to(file)
        with open_ledger(file) as other:
            with other._database.transaction():
                for key, value in meta.items():
                    other._database.change("change_meta", key=key, value=value)
            other._database.fold()

    @contextlib.contextmanager
    def at_one_moment(self) -> Generator[None]:
        """Everything read inside is of one moment, whatever other processes write meanwhile."""
        with self._database.snapshot():
            yield

    def look_at_one_moment(self, look: Callable[[], R]) -> R:
        """Returns the result of `look`, which only reads, all of it at one moment. It is done again
        from its beginning if the connection is lost.
        """

        def once() -> R:
            with self.at_one_moment():
                return look()

        return with_retry(once, self._database.reconnect)


@contextlib.contextmanager
def open_ledger(location: Path | str, schema: str = "") -> Generator[Ledger]:
    """A ledger, closed at the end."""
    ledger = Ledger(location, schema)
    try:
        yield ledger
    finally:
        ledger.close()


BESIDE = ("-turn", "-host")  # files of the processes that use a ledger, no part of it
LOG = ("-wal", "-shm")  # commits of the ledger of that name, and of no other


def open_database(location: Path | str, schema: str = "") -> Database:
    """The database at a location: a file, or `postgresql://...` with the schema of one run. Tables
    are created in an empty one.

    Raises:
      BadDatabase: neither a file nor such a URL.
      LedgerDamaged, LedgerVersion, NotWritable, DiskFull, RunBusy, DatabaseUnreachable.
    """
    if isinstance(location, Path):
        from dipaco.control.database.sqlite import SQLite

        return SQLite(location)
    if location.startswith(("postgresql://", "postgres://")):
        from dipaco.control.database.postgresql import PostgreSQL

        return PostgreSQL(location, schema)
    raise BadDatabase(given=location)


def install_ledger(partial: Path, final: Path) -> None:
    """Puts a finished ledger, a file that no process has open, at its name. What was there goes
    with its log, which would be read as the new one's.
    """
    for file, suffixes in ((partial, BESIDE), (final, LOG)):
        for suffix in suffixes:
            file.with_name(f"{file.name}{suffix}").unlink(missing_ok=True)
    install_file(partial, final, PRIVATE)  # it holds the key that signs passes
