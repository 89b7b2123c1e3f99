"""PostgreSQL: the facts of a run in a schema of their own, for workers on any machine.

Leases are measured by the server's clock, so no two machines need agree on the time. A transaction
that counts facts (contributions to a module, say) must count all, and at READ COMMITTED it does not
see what other transactions are about to commit. So transactions that count the same facts take an
advisory lock of that name, after they have recorded and before they count.

What happens for every path and phase is one statement each: a claim, and what is recorded of a
phase (`finish_training`, a function of the schema). A lock is then never held while a client waits
for a processor.
"""

import contextlib
import functools
import re
from collections.abc import Generator
from pathlib import Path
from typing import Any

from dipaco.control.database import (
    KeyTaken,
    check_version,
    migrations,
    newest_version,
    queries,
)
from dipaco.control.errors import DatabaseRefuses, PasswordOnCommandLine
from dipaco.control.retry import ConnectionLost, with_retry
from dipaco.errors import DiskFull, ExtraMissing

CONNECT_SECONDS = 10
# A host that vanished is noticed in seconds, not in the systems' two hours: the server, or by the
# server a client, which may hold locks that others wait for.
KEEPALIVE: dict[str, Any] = {"keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3}
SILENT_MILLISECONDS = 15_000
# A process that is suspended inside a transaction keeps its connection, and loses the transaction.
IDLE_MILLISECONDS = 60_000
NOW = "extract(epoch FROM clock_timestamp())::double precision"


class PostgreSQL:
    """A `Database` on a server."""

    epoch = "server"  # one clock for all clients
    is_remote = True

    def __init__(self, url: str, schema: str, *, allows_older: bool = False):
        try:
            import psycopg
        except ImportError as error:
            raise ExtraMissing(
                feature="A run in PostgreSQL", package="psycopg", extra="postgresql"
            ) from error
        self._psycopg = psycopg
        self._url, self._schema = url, schema
        self.place = without_password(url)
        self._connection: Any = None
        self._is_inside = False  # a transaction
        self._allows_older = allows_older
        try:
            with_retry(self._begin, lambda: None)
        except BaseException:
            self.close()
            raise

    def _begin(self) -> None:
        self.reconnect()
        with self._inside():
            self._create_tables()

    def reconnect(self) -> None:
        self.close()
        with self._translate_errors():
            self._connection = self._psycopg.connect(
                self._url,
                autocommit=True,
                connect_timeout=CONNECT_SECONDS,
                **KEEPALIVE,
                tcp_user_timeout=SILENT_MILLISECONDS,
                options=f'-c search_path="{self._schema}" -c client_min_messages=warning'
                f" -c synchronous_commit=off -c tcp_user_timeout={SILENT_MILLISECONDS}"
                f" -c idle_in_transaction_session_timeout={IDLE_MILLISECONDS} "
                + " ".join(f"-c tcp_{name}={value}" for name, value in KEEPALIVE.items()),
            )

    @contextlib.contextmanager
    def transaction(self, *, is_durable: bool = True) -> Generator[None]:
        with self._inside():
            yield
        if is_durable:
            self.flush()

    def flush(self) -> None:
        """What was committed outlives a power cut. A flush follows the commit, when our locks are
        released: the server flushes the commits of many clients at once.
        """
        self._execute("flush", {})

    def lock(self, *subjects: str) -> None:
        for key in self.lock_keys(*subjects):
            self.rows("wait_for_lock", subject=key)

    def lock_keys(self, *subjects: str) -> list[str]:
        """Sorted, so that no two transactions wait for each other."""
        return sorted({f"{self._schema} {subject}" for subject in subjects})

    @contextlib.contextmanager
    def snapshot(self) -> Generator[None]:
        with self._inside():
            self._connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            yield

    def rows(self, query: str, **values: Any) -> list[tuple]:
        """Retries when the connection is lost, unless inside a transaction."""
        if self._is_inside:
            return self._execute(query, values).fetchall()
        return with_retry(lambda: self._execute(query, values).fetchall(), self.reconnect)

    def once(self, query: str, **values: Any) -> list[tuple]:
        return self._execute(query, values).fetchall()

    def one(self, query: str, **values: Any) -> tuple | None:
        rows = self.rows(query, **values)
        return rows[0] if rows else None

    def change(self, query: str, **values: Any) -> int:
        return self._execute(query, values).rowcount

    def upgrade(self) -> tuple[int, int]:
        with self._inside():
            self.lock("schema")
            before = self._version()
            self._migrate(before)
        return before, newest_version("postgresql")

    def fold(self) -> None:
        """A server keeps its own files."""

    def copy_to(self, file: Path) -> None:
        raise AssertionError("a run whose facts are on a server is not forked")

    def drop(self) -> None:
        with self._inside():
            text = queries("postgresql")["drop_schema"].format(schema=self._schema)
            self._connection.execute(text)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    @contextlib.contextmanager
    def _inside(self) -> Generator[None]:
        self._is_inside = True
        try:
            with self._translate_errors(), self._connection.transaction():
                yield
        finally:
            self._is_inside = False

    def _execute(self, query: str, values: dict[str, Any]) -> Any:
        with self._translate_errors():
            return self._connection.execute(_named(query), values)

    def _create_tables(self) -> None:
        """Creates the tables in an empty schema."""
        self.lock("schema")
        # The name is from database_location.py: letters, digits and underscores.
        self._connection.execute(queries("postgresql")["create_schema"].format(schema=self._schema))
        self.change("create_schema_version")
        version = self._version()
        check_version(version, self.place, "postgresql", allows_older=self._allows_older)
        if not version:
            self._migrate(version)

    def _version(self) -> int:
        found = self.one("get_schema_version")
        return 0 if found is None else found[0]

    def _migrate(self, version: int) -> None:
        for number, script in migrations("postgresql").items():
            if number > version:
                self._connection.execute(script)
                self.change("put_schema_version", version=number)

    @contextlib.contextmanager
    def _translate_errors(self) -> Generator[None]:
        errors = self._psycopg.errors
        try:
            yield
        except (errors.DiskFull, errors.OutOfMemory) as error:
            raise DiskFull(file=f"the database {self.place}") from error
        except (errors.InsufficientPrivilege, errors.InvalidAuthorizationSpecification) as error:
            raise DatabaseRefuses(place=self.place, problem=_line(error)) from error
        except errors.UniqueViolation as error:
            raise KeyTaken(_line(error)) from error
        except errors.InvalidCatalogName as error:
            raise DatabaseRefuses(place=self.place, problem=_line(error)) from error
        except (
            self._psycopg.OperationalError,
            self._psycopg.InterfaceError,
            errors.IdleInTransactionSessionTimeout,
        ) as error:
            text = _line(error)
            if "authentication failed" in text or "does not exist" in text:
                raise DatabaseRefuses(place=self.place, problem=text) from error
            raise ConnectionLost(place=self.place, problem=text) from error


def without_password(url: str) -> str:
    """The same URL without its password, to be shown."""
    return re.sub(r"(//[^/:@]*):[^@/]*@", r"\1@", url)


def refuse_password(url: str) -> None:
    """Raises `PasswordOnCommandLine`: every user of the machine can read command lines."""
    if without_password(url) != url or re.search(r"[?&]password=", url):
        raise PasswordOnCommandLine(place=without_password(url).partition("?")[0])


@functools.cache
def _named(query: str) -> str:
    return _statement(queries("postgresql")[query])


def _statement(text: str) -> str:
    """SQLite's `:name` becomes `%(name)s`, and `:now` the server's clock."""
    text = text.replace("%", "%%")
    return re.sub(r"(?<!:):(\w+)", lambda m: NOW if m[1] == "now" else f"%({m[1]})s", text)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
