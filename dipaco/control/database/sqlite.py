"""SQLite: the facts of a run in one file, for all processes of one host.

WAL, and always BEGIN IMMEDIATE: a transaction that reads first and writes later can fail in a way
that no waiting cures. SQLite's own lock is unfair, and with many writers some wait for seconds. So
writers first take a lock on a file beside the ledger (`write_lock.py`), which the system grants
in order.
"""

import contextlib
import errno
import os
import shutil
import sqlite3
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

from dipaco.control import clock
from dipaco.control.database.contract import (
    TABLES_VERSION,
    KeyTaken,
    check_version,
    schema_script,
    text_of,
    with_storable_text,
)
from dipaco.control.database.host_mark import HostMark
from dipaco.control.database.write_lock import WriteLock
from dipaco.errors import DiskFull, LedgerDamaged, NotWritable, RunBusy
from dipaco.files import PRIVATE, translate_os_errors

FOLD = "PRAGMA wal_checkpoint(TRUNCATE)"
TURN_SECONDS = 30.0  # A writer waits so long for the lock before it says who holds it.
SPARE_BYTES = 64 << 10  # The index of the write-ahead log takes a little less.


class SQLite:
    """A `Database` in a file; `:memory:` for one that goes with its connection.

    Args:
      turn_seconds: limit of a transaction's wait for another process. Then it raises
        `WriteLockHeld`, which is retried like the loss of a server.
    """

    is_remote = False

    def __init__(self, file: Path, *, turn_seconds: float | None = None):
        self._file = file
        self._turn: WriteLock | None = None
        self._turn_seconds = TURN_SECONDS if turn_seconds is None else turn_seconds
        self._inside: object | None = None  # the transaction that we are in
        self._log: int | None = None  # Write-ahead log. SQLite keeps it open as long as we do.
        self.epoch = clock.epoch()
        self._host: HostMark | None = None
        place = _read_only_place(file)
        self._is_read_only = place is not None
        if str(file) != ":memory:":
            self._host = HostMark(file, clock.host())
            with translate_os_errors(file):
                if place is None or "immutable" not in place:
                    self._host.wait_until_free()
                if place is None:
                    _make_private(file)
        with self._translate_errors():
            self._connection = sqlite3.connect(
                place or file, timeout=30.0, isolation_level=None, uri=place is not None
            )
        try:
            with self._translate_errors():
                if place is not None:
                    self._version()
                    return
                if str(file) != ":memory:":
                    self._turn = WriteLock(file.with_name(f"{file.name}-turn"), self._turn_seconds)
                self._connection.execute("PRAGMA journal_mode = WAL")
                # A commit is flushed by `flush`, after the lock is released: the system flushes the
                # commits of many writers at once. A power cut undoes the last commits, in order; a
                # commit that builds on another is later, and is undone with it.
                self._connection.execute("PRAGMA synchronous = NORMAL")
                self._connection.execute("PRAGMA foreign_keys = ON")
                if not self._version():
                    self._create_tables()
        except BaseException:
            self.close()
            raise

    @contextlib.contextmanager
    def transaction(self, *, is_durable: bool = True) -> Generator[None]:
        host = self._host
        if self._is_read_only:
            raise NotWritable(file=self._file, problem=os.strerror(errno.EROFS))
        if host is not None:
            with translate_os_errors(self._file):
                host.begin()
        with self._begun("BEGIN IMMEDIATE", "COMMIT", self._turn):
            yield
            if host is not None:  # It may have been suspended meanwhile.
                with translate_os_errors(self._file):
                    host.check()
        if is_durable:
            self.flush()

    @contextlib.contextmanager
    def _begun(self, begin: str, end: str, turn: WriteLock | None) -> Generator[None]:
        """A transaction, and no part of another. An interrupt may come where no `finally` runs as
        long as its traceback is kept: what it has left is ended here, or by `close`.
        """
        this = object()
        with self._translate_errors():
            try:
                self._leave()
                self._inside = this
                if turn is not None:
                    turn.take()
                self._connection.execute(begin)
                yield
                assert self._inside is this, "a transaction was begun inside another"
                self._connection.execute(end)
                self._leave()
            except BaseException:
                if self._inside is this:
                    self._leave()
                raise

    def _leave(self) -> None:
        """Rolls back, and gives back the turn. A second call changes nothing."""
        try:
            if self._connection.in_transaction:  # a full disk has rolled it back by itself
                self._connection.execute("ROLLBACK")
        finally:
            if self._turn is not None:
                self._turn.give_back()
        self._inside = None

    @property
    def is_inside(self) -> bool:
        return self._connection.in_transaction

    def lock(self, *subjects: str) -> None:
        """There is one writer at a time. A transaction holds the only lock."""

    def lock_keys(self, *subjects: str) -> list[str]:
        return []

    @contextlib.contextmanager
    def snapshot(self) -> Generator[None]:
        with self._begun("BEGIN", "ROLLBACK", None):
            yield

    def rows(self, query: str, **values: Any) -> list[tuple]:
        """Fetches all: a cursor left open would hold the write lock."""
        return self._execute(query, values).fetchall()

    def select(self, text: str, **values: Any) -> list[tuple]:
        with self._translate_errors():
            return self._connection.execute(text, values).fetchall()

    def once(self, query: str, **values: Any) -> list[tuple]:
        with self.transaction():
            return self.rows(query, **values)

    def one(self, query: str, **values: Any) -> tuple | None:
        rows = self.rows(query, **values)
        return rows[0] if rows else None

    def change(self, query: str, **values: Any) -> int:
        try:
            return self._execute(query, values).rowcount
        except sqlite3.IntegrityError as error:
            # Any other violation is a defect of this program.
            if error.sqlite_errorname != "SQLITE_CONSTRAINT_PRIMARYKEY":
                raise
            raise KeyTaken(str(error)) from error

    def reconnect(self) -> None:
        """A file needs no connection."""

    def for_thread(self) -> "SQLite":
        return SQLite(self._file, turn_seconds=self._turn_seconds)

    def fold(self) -> None:
        """Puts everything into the one file, which may be moved once it is closed.

        `close` does so as well, but silently fails on a full disk.
        """
        with self._translate_errors():
            self._connection.execute(FOLD)

    def copy_to(self, file: Path) -> None:
        with translate_os_errors(file):
            _make_private(file)
        with self._translate_errors(), contextlib.closing(sqlite3.connect(file)) as other:
            self._connection.backup(other)

    def drop(self) -> None:
        raise AssertionError("a file is put in place only when its run has begun")

    def close(self) -> None:
        self._inside = None
        if self._log is not None:
            os.close(self._log)
        self._connection.close()
        if self._turn is not None:
            self._turn.close()

    def _execute(self, query: str, values: dict[str, Any]) -> sqlite3.Cursor:
        with self._translate_errors():
            clocks = {"now": clock.now_seconds(), "wall": time.time()}
            values = with_storable_text(values) | clocks
            return self._connection.execute(text_of("sqlite", query), values)

    def _free_bytes(self) -> int:
        return shutil.disk_usage(self._file.absolute().parent).free

    def flush(self) -> None:
        """Waits until everything that was committed outlives a power cut."""
        if self._turn is None:
            return
        try:
            if self._log is None:
                self._log = os.open(f"{self._file}-wal", os.O_RDWR)
            os.fsync(self._log)
        except OSError as error:
            raise NotWritable(file=self._file, problem=error) from error

    def _version(self) -> int:
        version = self._connection.execute("PRAGMA user_version").fetchone()[0]
        check_version(version, self._file)
        return version

    def _create_tables(self) -> None:
        with self.transaction():
            if self._version():  # Another process was first.
                return
            for statement in _statements(schema_script("sqlite")):
                self._connection.execute(statement)
            self._connection.execute(f"PRAGMA user_version = {TABLES_VERSION}")

    @contextlib.contextmanager
    def _translate_errors(self) -> Generator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            # A connection that is closed is a defect of this program, and no damage.
            if isinstance(error, sqlite3.IntegrityError | sqlite3.ProgrammingError):
                raise
            # The low byte is the kind of error, the rest its detail.
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            # If not even its index file fits, SQLite reports an input or output error.
            is_full = code == sqlite3.SQLITE_IOERR and self._free_bytes() < SPARE_BYTES
            if code == sqlite3.SQLITE_FULL or is_full:
                raise DiskFull(file=self._file) from error
            if code == sqlite3.SQLITE_BUSY:
                raise RunBusy(folder=self._file.parent) from error
            if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR):
                raise NotWritable(file=self._file, problem=error) from error
            raise LedgerDamaged(file=self._file, problem=error) from error


def _read_only_place(file: Path) -> str | None:
    """What SQLite is told to open if a ledger can only be read: the disk is read-only, or it is
    another user's. None: it can be written, or made. Without a log nobody works on it.
    """
    if not file.exists() or all(os.access(each, os.W_OK) for each in (file, file.parent)):
        return None
    is_at_rest = not file.with_name(f"{file.name}-wal").exists()
    return f"{file.absolute().as_uri()}?{'immutable=1&' if is_at_rest else ''}mode=ro"


def _make_private(file: Path) -> None:
    """Lets only its owner read a ledger, which holds the key that signs passes: makes the file, or
    changes one that others can read. SQLite gives the files beside it the same mode.

    The file is never opened here: closing it would drop the locks that SQLite holds in this
    process.
    """
    with contextlib.suppress(FileExistsError):
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_RDWR, PRIVATE))
    for each in (file, *(file.with_name(f"{file.name}{suffix}") for suffix in ("-wal", "-shm"))):
        with contextlib.suppress(FileNotFoundError, PermissionError):  # another user's
            if each.stat().st_mode & 0o077:
                each.chmod(PRIVATE)


def _statements(script: str) -> Iterator[str]:
    """Splits a script without `executescript`, which would commit."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
