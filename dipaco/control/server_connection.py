"""One connection of a process to a PostgreSQL server, directly or through a pooler.

The threads of a process use it in turn. A thread that must not wait (it renews leases) has
*patience*: while another thread is in a long statement, it opens a second connection for one use.

A pooler (PgBouncer with `pool_mode = transaction`) gives each transaction to any of its own
connections. So nothing may last longer than a transaction: no settings of a session, no prepared
statements, no search path (`qualified` names each table with its schema).
"""

import contextlib
import functools
import re
import threading
from collections.abc import Generator
from typing import Any

from dipaco.control.database import KeyTaken, migrations
from dipaco.control.errors import BadDatabaseURL, DatabaseRefuses
from dipaco.control.password import check_credentials, without_password
from dipaco.control.retry import ConnectionLost
from dipaco.errors import DiskFull, LedgerDamaged, needs_extra

CONNECT_SECONDS = 10
# A host that vanished is noticed in seconds, not in the systems' two hours: the server, or by the
# server a client, which may hold locks that others wait for.
KEEPALIVE: dict[str, Any] = {"keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3}
SILENT_MILLISECONDS = 15_000
# A process that is suspended inside a transaction keeps its connection, and loses the transaction.
IDLE_MILLISECONDS = 60_000
IS_FULL = re.compile("too many clients|connection slots|no more connections|too many connections")
IS_MALFORMED = re.compile(r"invalid (port number|integer value|\w+ value)")
IS_REFUSED = re.compile("authentication failed|does not exist|no such (user|database)")


class ServerConnection:
    """A connection to a server, for the statements of one schema.

    Args:
      url: of the server.
      schema: of the run.
      beside: the connection of another thread of this process, to use in turn with it.
      patience_seconds: for which it waits for its turn, before it opens one for a single use.

    Raises:
      BadDatabaseURL: it cannot be read.
    """

    def __init__(
        self,
        url: str,
        schema: str,
        *,
        beside: "ServerConnection | None" = None,
        patience_seconds: float = -1.0,
    ):
        with needs_extra("postgresql", package="psycopg", feature="A run in PostgreSQL"):
            import psycopg
            import psycopg.conninfo
        self._psycopg = psycopg
        self.place = without_password(url)
        self._url, self._schema, self._patience_seconds = url, schema, patience_seconds
        self._turn: _Turn = _Turn() if beside is None else beside._turn
        self._is_owner = beside is None
        self._held: Any = None  # while it is our turn
        if beside is None:
            self._check_url()

    @contextlib.contextmanager
    def turn(self) -> Generator[Any]:
        """The connection as psycopg's, for this thread alone; opened if there is none, or if it is
        broken. Raises `ConnectionLost`, `DatabaseRefuses`, `BadDatabaseURL`.
        """
        if self._held is not None:
            yield self._held
        elif self._turn.lock.acquire(timeout=self._patience_seconds):
            try:
                if self._turn.raw is None or not _is_usable(self._turn.raw):
                    self._turn.close()
                    self._turn.raw = self._open()
                self._held = self._turn.raw
                yield self._held
            finally:
                self._held = None
                self._turn.lock.release()
        else:
            with contextlib.closing(self._open()) as self._held:
                try:
                    yield self._held
                finally:
                    self._held = None

    @contextlib.contextmanager
    def transaction(self, mode: str = "") -> Generator[None]:
        """All statements inside take effect together or not at all; see `flush` for when.

        Args:
          mode: of the transaction, as SQL has it.
        """
        if self._held is not None:  # part of the transaction that we are in
            with self.translated_errors(), self._held.transaction():
                yield
            return
        settings = {
            "synchronous_commit": "off",
            "idle_in_transaction_session_timeout": IDLE_MILLISECONDS,
            "tcp_user_timeout": SILENT_MILLISECONDS,
            **{f"tcp_{name}": value for name, value in KEEPALIVE.items()},
        }
        begin = "; ".join(
            [f"BEGIN {mode}", *(f"SET LOCAL {name} = {value}" for name, value in settings.items())]
        )
        with self.turn() as raw, self.translated_errors():
            raw.execute(begin)
            try:
                yield
            except BaseException:
                with contextlib.suppress(self._psycopg.Error):
                    raw.execute("ROLLBACK")
                raise
            raw.execute("COMMIT")

    @property
    def is_inside(self) -> bool:
        """Whether it is our turn: in a transaction."""
        return self._held is not None

    def execute(self, text: str, values: Any = None) -> Any:
        """Runs a statement that names tables without their schema; its cursor."""
        with self.turn() as raw, self.translated_errors():
            return raw.execute(qualified(text, self._schema), values)

    def execute_as_written(self, script: str) -> None:
        """Runs statements that are complete."""
        with self.turn() as raw, self.translated_errors():
            raw.execute(script)

    def close(self) -> None:
        if self._is_owner:
            self._turn.close()

    def _open(self) -> Any:
        with self.translated_errors(is_connecting=True):
            return self._psycopg.connect(
                self._url,
                autocommit=True,
                prepare_threshold=None,
                connect_timeout=CONNECT_SECONDS,
                **KEEPALIVE,
                tcp_user_timeout=SILENT_MILLISECONDS,
            )

    @contextlib.contextmanager
    def translated_errors(self, *, is_connecting: bool = False) -> Generator[None]:
        errors = self._psycopg.errors
        try:
            yield
        except (errors.DiskFull, errors.OutOfMemory) as error:
            raise DiskFull(file=f"the database {self.place}") from error
        except (
            errors.InsufficientPrivilege,
            errors.InvalidAuthorizationSpecification,
            errors.InvalidCatalogName,
        ) as error:
            raise DatabaseRefuses(place=self.place, problem=_line(error)) from error
        except (errors.UndefinedTable, errors.InvalidSchemaName, errors.UndefinedFunction) as error:
            raise LedgerDamaged(file=self.place, problem=_line(error)) from error
        except errors.ReadOnlySqlTransaction as error:  # a standby; the next may be the primary
            if self._held is not None:
                self._held.close()
            raise ConnectionLost(place=self.place, problem=_line(error)) from error
        except errors.UniqueViolation as error:
            raise KeyTaken(_line(error)) from error
        except (
            self._psycopg.OperationalError,
            self._psycopg.InterfaceError,
            errors.IdleInTransactionSessionTimeout,
        ) as error:
            text = _line(error)
            if is_connecting and IS_MALFORMED.search(text):
                raise BadDatabaseURL(place=self.place, problem=self._problem(text)) from error
            if is_connecting and IS_REFUSED.search(text):
                raise DatabaseRefuses(place=self.place, problem=text) from error
            if IS_FULL.search(text):
                text += " (it has no connection left: start fewer workers, raise its "
                text += "`max_connections`, or put PgBouncer before it)"
            raise ConnectionLost(place=self.place, problem=text) from error

    def _check_url(self) -> None:
        """Raises `BadDatabaseURL`."""
        check_credentials(self._url)
        try:
            settings = self._psycopg.conninfo.conninfo_to_dict(self._url)
        except self._psycopg.ProgrammingError as error:
            problem = self._problem(_line(error))
            raise BadDatabaseURL(place=self.place, problem=problem) from error
        for port in str(settings.get("port", "")).split(","):  # one for each host
            if port and not re.fullmatch("[0-9]{1,5}", port):
                raise BadDatabaseURL(place=self.place, problem=f"its port is `{port}`")

    def _problem(self, text: str) -> str:
        """What is wrong with the URL. Of what is quoted of it, no more than is shown of it: the
        rest may be of a password.
        """
        text = re.sub(r' in URI: ".*"', "", text)
        shown = f"{self.place} ]"  # a bracket that is missing is quoted too
        return re.sub(r'"([^"]*)"', lambda it: it[0] if it[1] in shown else "a value", text)


class _Turn:
    """What the threads of a process share: the connection, and whose turn it is."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.raw: Any = None  # psycopg's

    def close(self) -> None:
        if self.raw is not None:
            self.raw.close()
            self.raw = None


def _is_usable(raw: Any) -> bool:
    """Whether it is connected and between two transactions."""
    return not raw.closed and raw.info.transaction_status.name == "IDLE"


@functools.lru_cache(maxsize=1024)
def qualified(text: str, schema: str) -> str:
    """A statement with its tables and functions named by their schema.

    Only those of the run's own tables that follow a word of SQL before a table are changed: columns
    may be called like tables.
    """
    tables, functions = _names("TABLE"), _names("FUNCTION")
    text = re.sub(
        rf"\b(FROM|JOIN|INTO|UPDATE|TABLE|EXISTS)(\s+)({tables})\b", rf'\1\2"{schema}".\3', text
    )
    return re.sub(rf"\b({functions})\(", rf'"{schema}".\1(', text)


@functools.cache
def _names(kind: str) -> str:
    """Of what the schema's scripts create, as a pattern."""
    scripts = "\n".join(migrations("postgresql").values())
    found = re.findall(rf"^CREATE {kind} (\w+)", scripts, flags=re.MULTILINE)
    return "|".join(["schema_version", *found])


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
