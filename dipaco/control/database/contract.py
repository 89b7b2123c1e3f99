"""The contract of a ledger's database: named queries, transactions, snapshots, locks and a clock.

Two files keep this contract: `sqlite.py`, a file for the processes of one host, and
`postgresql.py`, for workers on any machine. Every statement has a name in `queries.sql`. A name
followed by `@postgresql` is for that database only. A statement with `{table}` serves several
tables: `drop_phase trained` is `drop_phase` for the table `trained`.
"""

import contextlib
import functools
import importlib.resources
import re
from pathlib import Path
from typing import Any, Protocol

from dipaco.control.errors import LedgerVersion

TABLES_VERSION = 7  # Every change of the schema raises it.
NUMBERED = "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY"  # SQL's own word, in `tables.sql`
TRIGGER = re.compile(
    r"^CREATE TRIGGER (?P<name>\w+) (?P<event>(?:BEFORE|AFTER) [\w ]+ ON \w+)"
    r"(?:\nWHEN (?P<condition>.*?))? BEGIN\n(?P<body>.*?)^END;",
    re.MULTILINE | re.DOTALL,
)
REFUSAL = re.compile(r"\bSELECT raise\(ABORT, (.*)\);")  # SQLite's, in the body of a trigger
FREE_TEXT = ("reason", "last_words")  # values of statements: may quote whatever went wrong
PART = "part"  # A "dialect" for a condition that several queries share.
ROW_LOCK = re.compile(r"\s+FOR UPDATE[\w ]*(?=[);])")


class KeyTaken(Exception):
    """A row with this primary key exists already. The caller knows what that means."""


class Database(Protocol):
    """For one thread. Another takes what `for_thread` gives."""

    @property
    def epoch(self) -> str:
        """Names the clock of `:now`. Times of different epochs cannot be compared."""
        ...

    def transaction(self, *, is_durable: bool = True) -> contextlib.AbstractContextManager[None]:
        """All statements inside take effect together or not at all.

        Args:
          is_durable: outlives a power cut once it has ended. False is faster, and outlives the
            process only.
        """
        ...

    @property
    def is_inside(self) -> bool:
        """True if we are in a transaction or a snapshot."""
        ...

    def lock(self, *subjects: str) -> None:
        """Inside a transaction: holds the locks of `subjects` until it ends. Transactions that
        count the same facts run one after the other, and each sees the facts of those before.
        """
        ...

    @property
    def is_remote(self) -> bool:
        """True if frequent operations must be one statement each. Then `claim_task` and
        `finish_training` exist.
        """
        ...

    def lock_keys(self, *subjects: str) -> list[str]:
        """The names of the locks that `lock` takes, in its order. None on SQLite."""
        ...

    def flush(self) -> None:
        """Makes all commits outlive a power cut. A durable `transaction` ends with it."""
        ...

    def snapshot(self) -> contextlib.AbstractContextManager[None]:
        """Read-only. All queries inside see the database as it is at the first of them."""
        ...

    def rows(self, query: str, **values: Any) -> list[tuple]:
        """Runs a named query and returns all its rows. `:now` is the database's clock, in seconds,
        and `:wall` one that is fit to be shown: seconds since 1970.
        """
        ...

    def select(self, text: str, **values: Any) -> list[tuple]:
        """Same as `rows`, for a statement of another room, which reads only."""
        ...

    def once(self, query: str, **values: Any) -> list[tuple]:
        """Same as `rows`, for a statement that must not run twice: in its own transaction, not
        retried when the connection is lost.
        """
        ...

    def one(self, query: str, **values: Any) -> tuple | None:
        """Its first row, or None."""
        ...

    def change(self, query: str, **values: Any) -> int:
        """Runs a named statement, and returns how many rows it changed. Raises `KeyTaken`."""
        ...

    def for_thread(self) -> "Database":
        """The same database for another thread of this process. On a server it uses our connection
        in turn with us, and another for a moment while we are in a long statement. A process holds
        one connection.
        """
        ...

    def reconnect(self) -> None:
        """After `ConnectionLost`: a fresh connection. Raises `ConnectionLost`."""
        ...

    def fold(self) -> None:
        """SQLite: puts everything into the one file, which may be moved once closed."""
        ...

    def copy_to(self, file: Path) -> None:
        """SQLite: copies everything that is committed to another file."""
        ...

    def drop(self) -> None:
        """PostgreSQL: removes the schema and everything in it, of a run that was never marked."""
        ...

    def close(self) -> None: ...


def storable(text: str) -> str:
    """A text as any database takes it. An error may quote a file name that is no text, or a part
    of a binary file. Such characters are written as in a literal of Python.
    """
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")


def with_storable_text(values: dict[str, Any]) -> dict[str, Any]:
    """The values of a statement, its `FREE_TEXT` `storable`."""
    return values | {name: storable(values[name]) for name in FREE_TEXT if name in values}


@functools.cache
def queries(dialect: str) -> dict[str, str]:
    """Name -> statement, for one dialect. Parts that several share are put in."""
    pieces = re.split(r"^-- (\w+)(?:@(\w+))?: .*$", _read("queries.sql"), flags=re.MULTILINE)
    statements: dict[str, str] = {}
    parts: dict[str, str] = {}
    for name, only_for, text in zip(pieces[1::3], pieces[2::3], pieces[3::3], strict=True):
        if only_for == PART:
            parts[name] = re.sub(r"^--.*$", "", text, flags=re.MULTILINE).strip()
        elif only_for in (None, dialect):
            statements[name] = text.strip()
    if dialect == "sqlite":  # It has one writer at a time, and locks no rows.
        statements = {name: ROW_LOCK.sub("", text) for name, text in statements.items()}
    return {
        name: re.sub(r"\[\[(\w+)\]\]", lambda found: parts[found[1]], text)
        for name, text in statements.items()
    }


@functools.cache
def text_of(dialect: str, query: str) -> str:
    """The text of a query. Its name may be followed by a table."""
    name, _, table = query.partition(" ")
    return queries(dialect)[name].replace("{table}", table)


def check_version(found: int, place: object) -> None:
    """Raises `LedgerVersion` for tables of another version; 0 is a database without tables."""
    if found not in (0, TABLES_VERSION):
        raise LedgerVersion(file=place, found=found, expected=TABLES_VERSION)


@functools.cache
def schema_script(dialect: str) -> str:
    """The script that makes the tables of an empty database.

    `tables.sql` serves both databases, and `DIALECT.sql` holds the rest of one database. The two
    differ in `tables.sql` by three things only. SQLite numbers rows by another phrase. Its tables
    without such a number are kept in the order of their key. A trigger of PostgreSQL calls a
    function.
    """
    tables = _read("schema/tables.sql")
    if dialect == "sqlite":
        tables = re.sub(r"^CREATE TABLE .*?^\);", _as_sqlite, tables, flags=re.M | re.S)
    else:
        tables = TRIGGER.sub(_as_postgresql, tables)
    return tables + _read(f"schema/{dialect}.sql")


def _as_sqlite(found: re.Match[str]) -> str:
    table = found[0]
    if NUMBERED not in table:
        return table.removesuffix(";") + " WITHOUT ROWID;"
    return table.replace(NUMBERED, "INTEGER PRIMARY KEY AUTOINCREMENT")


def _as_postgresql(found: re.Match[str]) -> str:
    name, event, condition, body = found["name"], found["event"], found["condition"], found["body"]
    refuse = r"RAISE integrity_constraint_violation USING MESSAGE = \1;"
    body = REFUSAL.sub(refuse, body)
    when = f" WHEN ({condition})" if condition else ""
    as_postgresql = _read("schema/postgresql_trigger.sql")
    return as_postgresql.format(name=name, event=event, when=when, body=body)


def _read(name: str) -> str:
    return importlib.resources.files("dipaco.control.database").joinpath(name).read_text()
