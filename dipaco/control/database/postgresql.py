"""PostgreSQL: the facts of a run in a schema of their own, for workers on any machine.

A transaction that counts facts (contributions to a module, say) must count all. At READ COMMITTED
it does not see the facts that other transactions are about to commit. So transactions that count
the same facts take an advisory lock of that name, after they have recorded and before they count.

The frequent operations are one statement each: a claim, and the commit of a path's phase
(`finish_training`, a function of the schema). A lock is then never held while a client waits for a
processor.
"""

import contextlib
import functools
import re
from collections.abc import Generator
from pathlib import Path
from typing import Any

from dipaco import stopping
from dipaco.control.database.contract import (
    TABLES_VERSION,
    check_version,
    queries,
    schema_script,
    text_of,
    with_storable_text,
)
from dipaco.control.database.retry import FIRST_SECONDS, with_retry
from dipaco.control.database.server_connection import ServerConnection, qualified

PATIENCE_SECONDS = 1.0  # A renewal waits so long for another thread's statement.
CLOCKS = ("now", "wall")
_reached: set[str] = set()  # servers that this process has reached
NOW = "extract(epoch FROM clock_timestamp())::double precision"


class PostgreSQL:
    """A `Database` on a server."""

    epoch = "server"  # one clock for all clients
    is_remote = True

    def __init__(
        self,
        url: str,
        schema: str,
        *,
        beside: ServerConnection | None = None,
    ):
        self._url, self._schema = url, schema
        if beside is not None:
            self._connection = ServerConnection(
                url, schema, beside=beside, patience_seconds=PATIENCE_SECONDS
            )
            return
        self._connection = ServerConnection(url, schema)
        try:
            known = url in _reached
            with contextlib.nullcontext() if known else stopping.patience(FIRST_SECONDS):
                with_retry(self._begin, lambda: None)
            _reached.add(url)
        except BaseException:
            self.close()
            raise

    def _begin(self) -> None:
        with self._connection.transaction():
            self._create_tables()

    def for_thread(self) -> "PostgreSQL":
        return PostgreSQL(self._url, self._schema, beside=self._connection)

    def reconnect(self) -> None:
        with self._connection.turn():
            """It is opened again if it is broken."""

    @contextlib.contextmanager
    def transaction(self, *, is_durable: bool = True) -> Generator[None]:
        with self._connection.transaction():
            yield
        if is_durable:
            self.flush()

    def flush(self) -> None:
        """Makes all commits outlive a power cut. A flush follows the commit, when our locks are
        released: the server flushes the commits of many clients at once.
        """
        self._execute("flush", {})

    @property
    def is_inside(self) -> bool:
        return self._connection.is_inside

    def lock(self, *subjects: str) -> None:
        for key in self.lock_keys(*subjects):
            self.rows("wait_for_lock", subject=key)

    def lock_keys(self, *subjects: str) -> list[str]:
        """Sorted, so that no two transactions wait for each other."""
        return sorted({f"{self._schema} {subject}" for subject in subjects})

    @contextlib.contextmanager
    def snapshot(self) -> Generator[None]:
        """Begun on a new connection if the old one is lost."""
        with contextlib.ExitStack() as inside:

            def begin() -> None:
                mode = "ISOLATION LEVEL REPEATABLE READ READ ONLY"
                inside.enter_context(self._connection.transaction(mode))

            with_retry(begin, self.reconnect)
            yield

    def rows(self, query: str, **values: Any) -> list[tuple]:
        """Retries when the connection is lost, unless inside a transaction."""
        if self.is_inside:
            return self._execute(query, values).fetchall()
        return with_retry(lambda: self._execute(query, values).fetchall(), self.reconnect)

    def select(self, text: str, **values: Any) -> list[tuple]:
        if self.is_inside:
            return self._connection.execute(_statement(text), values).fetchall()
        return with_retry(
            lambda: self._connection.execute(_statement(text), values).fetchall(), self.reconnect
        )

    def once(self, query: str, **values: Any) -> list[tuple]:
        # An interrupt may have left a transaction, which would not be committed.
        self._connection.give_back()
        return self._execute(query, values).fetchall()

    def one(self, query: str, **values: Any) -> tuple | None:
        rows = self.rows(query, **values)
        return rows[0] if rows else None

    def change(self, query: str, **values: Any) -> int:
        return self._execute(query, values).rowcount

    def fold(self) -> None:
        """A server keeps its own files."""

    def copy_to(self, file: Path) -> None:
        raise AssertionError("a run whose facts are on a server is not forked")

    def drop(self) -> None:
        with self._connection.transaction():
            text = queries("postgresql")["drop_schema"].format(schema=self._schema)
            self._connection.execute(text)

    def close(self) -> None:
        self._connection.close()

    def statement(self, query: str) -> str:
        """A named query, as psycopg takes it."""
        return qualified(_named(query), self._schema)

    def _execute(self, query: str, values: dict[str, Any]) -> Any:
        return self._connection.execute(_named(query), with_storable_text(values))

    def _create_tables(self) -> None:
        """Creates the tables in an empty schema. Functions of the schema get its search path: they
        name tables without a schema, and no session has one.
        """
        self.lock("schema")
        # The name is from database_location.py: letters, digits and underscores.
        self._connection.execute(queries("postgresql")["create_schema"].format(schema=self._schema))
        self.change("create_schema_version")
        if found := self.one("get_schema_version"):
            check_version(found[0], self._connection.place)
            return
        execute, texts = self._connection.execute_as_written, queries("postgresql")
        execute(texts["search_here"].format(schema=self._schema))
        execute(schema_script("postgresql"))
        self.change("put_schema_version", version=TABLES_VERSION)
        for (routine,) in self.rows("routines"):
            execute(texts["set_search_path"].format(routine=routine, schema=self._schema))


@functools.cache
def _named(query: str) -> str:
    return _statement(text_of("postgresql", query))


def _statement(text: str) -> str:
    """SQLite's `:name` becomes `%(name)s`, `:now` and `:wall` the server's clock."""
    text = text.replace("%", "%%")
    return re.sub(r"(?<!:):(\w+)", lambda m: NOW if m[1] in CLOCKS else f"%({m[1]})s", text)
