"""SQLite: how it is opened, its transactions, its schema, and the named queries.

WAL, and always BEGIN IMMEDIATE: a transaction that reads first and writes later can fail in a way
that no waiting cures.
"""

import contextlib
import functools
import importlib.resources
import re
import sqlite3
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

from dipaco.errors import DiskFull, LedgerDamaged, LedgerVersion, NotWritable, RunBusy

SCHEMA_VERSION = 1


class Database:
    """One connection. Every statement is named, and found in `queries.sql`."""

    def __init__(self, file: Path):
        self._file = file
        with self._said_plainly():
            self._connection = sqlite3.connect(file, timeout=30.0, isolation_level=None)
        try:
            self._prepare()
        except BaseException:
            self._connection.close()
            raise

    def _prepare(self) -> None:
        with self._said_plainly():
            self._connection.execute("PRAGMA journal_mode = WAL")
            # A commit outlives a power cut, not only its process: what it supersedes is deleted.
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.execute("PRAGMA foreign_keys = ON")
            self._migrate()

    @contextlib.contextmanager
    def transaction(self) -> Generator[None]:
        """All statements inside take effect together or not at all."""
        with self._said_plainly():
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:  # a full disk has rolled it back by itself
                    self._connection.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def snapshot(self) -> Generator[None]:
        """All queries inside see the database as it is at the first of them; nothing is changed."""
        with self._said_plainly():
            self._connection.execute("BEGIN")
            try:
                yield
            finally:
                self._connection.execute("ROLLBACK")

    def rows(self, query: str, **values: Any) -> list[tuple]:
        """Runs a named query. Fetches all: a cursor left open would hold the write lock."""
        with self._said_plainly():
            return self._connection.execute(_queries()[query], values).fetchall()

    def one(self, query: str, **values: Any) -> tuple | None:
        rows = self.rows(query, **values)
        return rows[0] if rows else None

    def change(self, query: str, **values: Any) -> int:
        """Runs a named statement; returns the number of rows it changed."""
        with self._said_plainly():
            return self._connection.execute(_queries()[query], values).rowcount

    def close(self) -> None:
        self._connection.close()

    def _migrate(self) -> None:
        with self.transaction():
            (version,) = self._connection.execute("PRAGMA user_version").fetchone()
            if version == 0:
                for statement in _statements(_read("schema.sql")):
                    self._connection.execute(statement)
                self._connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            elif version != SCHEMA_VERSION:
                raise LedgerVersion(file=self._file, found=version, expected=SCHEMA_VERSION)

    @contextlib.contextmanager
    def _said_plainly(self) -> Generator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.IntegrityError):
                raise
            # The low byte is the kind of error, the rest its detail.
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code == sqlite3.SQLITE_FULL:
                raise DiskFull(file=self._file) from error
            if code == sqlite3.SQLITE_BUSY:
                raise RunBusy(folder=self._file.parent) from error
            if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR):
                raise NotWritable(file=self._file, problem=error) from error
            raise LedgerDamaged(file=self._file, problem=error) from error


def _read(name: str) -> str:
    return importlib.resources.files("dipaco.control").joinpath(name).read_text()


@functools.cache
def _queries() -> dict[str, str]:
    pieces = re.split(r"^-- (\w+): .*$", _read("queries.sql"), flags=re.MULTILINE)
    return {name: text.strip() for name, text in zip(pieces[1::2], pieces[2::2], strict=True)}


def _statements(script: str) -> Iterator[str]:
    """Splits a script without `executescript`, which would commit."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
