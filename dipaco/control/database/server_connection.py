"""One connection of a process to a PostgreSQL server, directly or through a pooler.

The threads of a process use it in turn. A thread that must not wait (it renews leases) has
*patience*: while another thread is in a long statement, it opens a second connection for one use.

A pooler (PgBouncer with `pool_mode = transaction`) gives each transaction to any of its
connections. So nothing may last longer than a transaction: no settings of a session, no prepared
statements, no search path (`qualified` names each table with its schema).
"""

import contextlib
import functools
import re
import threading
from collections.abc import Generator
from typing import Any

from dipaco.control.database.contract import KeyTaken, schema_script
from dipaco.control.database.location import check_credentials, without_password
from dipaco.control.database.retry import ConnectionLost, TransactionUndone
from dipaco.control.errors import BadDatabaseURL, DatabaseRefuses
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
      beside: the connection of another thread of this process, to use in turn with it.
      patience_seconds: limit of a wait for its turn. Then it opens a connection for a single use.

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
        self._single: Any = None  # opened for a single use
        self._user: object | None = None  # Identifies the present turn.
        if beside is None:
            self._check_url()

    @contextlib.contextmanager
    def turn(self) -> Generator[Any]:
        """The connection as psycopg's, for this thread alone; opened if there is none, or if it is
        broken. Raises `ConnectionLost`, `DatabaseRefuses`, `BadDatabaseURL`.
        """
        if self._held is not None:
            yield self._held
            return
        with self._own_turn():
            yield self._held

    @contextlib.contextmanager
    def _own_turn(self) -> Generator[object]:
        """A turn, and no part of another. An interrupt may come where no `finally` runs as long as
        its traceback is kept: what it has left is given back here, or by `close`.

        Yields:
          What `_user` is as long as it is this turn.
        """
        this = object()
        try:
            self.give_back()
            self._user = this
            if self._turn.take(self, self._patience_seconds):
                if self._turn.raw is None or not _is_usable(self._turn.raw):
                    self._turn.close()
                    self._turn.raw = self._open()
                self._held = self._turn.raw
            else:
                self._held = self._single = self._open()
            yield this
            self.give_back()
        except BaseException:
            if self._user is this:
                self.give_back()
            raise

    def give_back(self) -> None:
        """Gives the turn back. A second call changes nothing."""
        self._held = None
        if self._single is not None:
            self._single.close()
            self._single = None
        self._turn.give_back(self)
        self._user = None

    @contextlib.contextmanager
    def transaction(self, mode: str = "") -> Generator[None]:
        """All statements inside take effect together or not at all. See `flush` for when. It is
        part of no other transaction.
        """
        settings = {
            "synchronous_commit": "off",
            "idle_in_transaction_session_timeout": IDLE_MILLISECONDS,
            "tcp_user_timeout": SILENT_MILLISECONDS,
            **{f"tcp_{name}": value for name, value in KEEPALIVE.items()},
        }
        begin = "; ".join(
            [f"BEGIN {mode}", *(f"SET LOCAL {name} = {value}" for name, value in settings.items())]
        )
        with self._own_turn() as this, self.translated_errors():
            raw = self._held
            raw.execute(begin)
            try:
                yield
            except BaseException:
                if self._user is this:
                    with contextlib.suppress(self._psycopg.Error):
                        raw.execute("ROLLBACK")
                raise
            assert self._user is this, "a transaction was begun inside another"
            raw.execute("COMMIT")

    @property
    def is_inside(self) -> bool:
        """True in a transaction."""
        return self._held is not None

    def execute(self, text: str, values: Any = None) -> Any:
        """Runs a statement that names tables without their schema, and returns its cursor."""
        with self.turn() as raw, self.translated_errors():
            return raw.execute(qualified(text, self._schema), values)

    def execute_as_written(self, script: str) -> None:
        """Runs statements that are complete."""
        with self.turn() as raw, self.translated_errors():
            raw.execute(script)

    def close(self) -> None:
        self.give_back()
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
        except (
            *(errors.UndefinedTable, errors.UndefinedColumn, errors.UndefinedFunction),
            *(errors.DuplicateTable, errors.DuplicateFunction, errors.WrongObjectType),
            errors.InvalidSchemaName,
        ) as error:  # Its tables were changed, or are another program's.
            raise LedgerDamaged(file=self.place, problem=_line(error)) from error
        except errors.ReadOnlySqlTransaction as error:  # A standby. The next may be the primary.
            if self._held is not None:
                self._held.close()
            raise ConnectionLost(place=self.place, problem=_line(error)) from error
        except (errors.DeadlockDetected, errors.SerializationFailure) as error:
            raise TransactionUndone(place=self.place, problem=_line(error)) from error
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
        """The problem with the URL. It quotes no more of the URL than `place` shows: the rest may
        belong to a password.
        """
        text = re.sub(r' in URI: ".*"', "", text)
        shown = f"{self.place} ]"  # a bracket that is missing is quoted too
        return re.sub(r'"([^"]*)"', lambda it: it[0] if it[1] in shown else "a value", text)


class _Turn:
    """The connection that the threads of a process share, and the thread that uses it.

    The lock knows which thread has it: an interrupt may come as it is taken, before anything is
    noted of it.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._holder: ServerConnection | None = None
        self.raw: Any = None  # psycopg's

    def take(self, by: ServerConnection, patience_seconds: float) -> bool:
        """Takes the turn until `give_back`. False if another thread had it for all this time."""
        if not self._lock.acquire(timeout=patience_seconds):
            return False
        if self._holder is not None:  # This very thread holds it.
            self._lock.release()
            return False
        self._holder = by
        return True

    def give_back(self, by: ServerConnection) -> None:
        """Gives the turn back if it has it. A turn left by an interrupt counts as its own."""
        if self._holder is by:
            self._holder = None
        elif self._holder is not None:
            return
        with contextlib.suppress(RuntimeError):  # it is not, or not any more, this thread's
            while True:
                self._lock.release()

    def close(self) -> None:
        if self.raw is not None:
            self.raw.close()
            self.raw = None


def _is_usable(raw: Any) -> bool:
    """True if it is connected and between two transactions."""
    return not raw.closed and raw.info.transaction_status.name == "IDLE"


@functools.lru_cache(maxsize=1024)
def qualified(text: str, schema: str) -> str:
    """A statement with its tables and functions named by their schema.

    A table is changed only after a word of SQL that precedes tables, because columns may be called
    like tables.
    """
    tables, functions = _names("TABLE"), _names("FUNCTION")
    text = re.sub(
        rf"\b(FROM|JOIN|INTO|UPDATE|TABLE|EXISTS)(\s+)({tables})\b", rf'\1\2"{schema}".\3', text
    )
    return re.sub(rf"\b({functions})\(", rf'"{schema}".\1(', text)


@functools.cache
def _names(kind: str) -> str:
    """Names that the schema creates, as a pattern."""
    found = re.findall(rf"^CREATE {kind} (\w+)", schema_script("postgresql"), flags=re.MULTILINE)
    return "|".join(["schema_version", *found])


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
