"""Named points of a task at which a process kills or interrupts itself: after claim, inside steps,
before save, inside record, ...

They exist by wrapping functions of `dipaco` in the process that is to die, since the product has no
hooks for them.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple


class Fault(NamedTuple):
    """A signal that a process sends itself.

    Args:
      where: the named point.
      kind: kind of the current task. None = any.
      nth: number of passages of the point before the signal is sent.
      number: the signal's number.
    """

    where: str
    kind: str | None = None
    nth: int = 1
    number: int = signal.SIGKILL


def install(fault: Fault, marker: Path) -> None:
    """Names all points in this process and sends the signal at one point.

    Args:
      marker: file that gets `WHERE KIND` just before the signal is sent.
    """
    # Loaded here, since tests and storms import the record and none of this.
    import orbax.checkpoint

    from dipaco import files
    from dipaco.control.claims.queue import Queue
    from dipaco.control.database.postgresql import PostgreSQL
    from dipaco.control.database.sqlite import SQLite
    from dipaco.control.facts.commit import Commit
    from dipaco.control.ledger import Ledger
    from dipaco.data import corpus_writing, reading
    from dipaco.data.token_files import TokenWriter
    from dipaco.runs.reading import report
    from dipaco.store import objects
    from dipaco.store.objects import Objects
    from dipaco.sweeps import jobs
    from dipaco.workers import phase_end, runners
    from dipaco.workers.monitor import Monitor

    point = _Counter(fault, marker)
    at: Callable[[str], Callable[[], None]] = lambda where: lambda: point.passed(where)  # noqa: E731
    after: Callable[[str], Callable[[Any], None]] = lambda where: lambda _: point.passed(where)  # noqa: E731

    wrap(Ledger, "start", before=at("before begin"))
    wrap(Queue, "claim", after=point.claimed)
    wrap(Commit, "finish", before=point.begins_to_record, after=point.has_recorded)
    for database in (SQLite, PostgreSQL):
        wrap(database, "change", after=point.changed)
    once: Any = PostgreSQL.once

    def asked_once(database, query, **values):
        """Records a phase. At the point the server has the statement, and nobody waits for it."""
        if point.is_recording:
            point.passed("inside record", lambda: _send(database, query, values))
        return once(database, query, **values)

    setattr(PostgreSQL, "once", asked_once)  # noqa: B010
    wrap(Objects, "write", before=at("before save"))
    wrap(Objects, "delete", before=at("before sweep"))
    for room in (objects, files):  # Objects and `write_atomically` both install files.
        wrap(room, "install_file", before=at("inside save"))
    wrap(phase_end, "save_snapshot", before=at("before save"))
    wrap(Monitor, "look", after=after("after look"))
    wrap(report, "write_atomically", after=after("inside save"))
    # Orbax writes in the background: when `save` returns, the snapshot is not there yet.
    wrap(orbax.checkpoint.StandardCheckpointer, "save", after=after("inside snapshot"))
    wrap(jobs.LocalEngine, "start", after=after("after start"))
    wrap(reading, "cut_text", after=after("inside reading"))
    wrap(TokenWriter, "write", after=after("inside tokens"))
    wrap(corpus_writing, "_finish", before=at("before manifest"))
    wrap(corpus_writing.shutil, "rmtree", before=at("after manifest"))
    run_phase: Any = runners.run_phase

    def watched(*arguments, on_step, **settings):
        def stepped(step, loss):
            on_step(step, loss)
            point.passed("inside steps")

        return run_phase(*arguments, on_step=stepped, **settings)

    vars(runners)["run_phase"] = watched


def _send(database: Any, query: str, values: dict[str, Any]) -> None:
    import psycopg

    with database._connection.turn() as connection:
        statement = database.statement(query).encode()
        text = psycopg.ClientCursor(connection).mogrify(statement, values)
        connection.pgconn.send_query(text.encode())
        connection.pgconn.flush()


class _Counter:
    """Counts how often the point of a fault is passed. The process gets the signal at the nth."""

    def __init__(self, fault: Fault, marker: Path):
        self._fault, self._marker, self._left = fault, marker, fault.nth
        self._doing: str | None = None  # the kind of the task that is being done
        self.is_recording = False

    def passed(self, where: str, last: Callable[[], None] = lambda: None) -> None:
        """Passes a point. Calls `last` before the signal, and does not return from a SIGKILL."""
        if where != self._fault.where or self._fault.kind not in (None, self._doing):
            return
        self._left -= 1
        if self._left == 0:
            last()
            self._marker.write_text(f"{where} {self._doing}")
            os.kill(os.getpid(), self._fault.number)

    def claimed(self, claim: Any) -> None:
        self._doing = None if claim is None else claim.task.kind
        self.passed("after claim")

    def begins_to_record(self) -> None:
        self.is_recording = True
        self.passed("before record")

    def has_recorded(self, _: Any) -> None:
        self.is_recording = False
        self.passed("after record")

    def changed(self, _: Any) -> None:
        if self.is_recording:
            self.passed("inside record")


def wrap(owner: Any, name: str, before=lambda: None, after=lambda result: None) -> None:
    """Puts a function before and after another."""
    inner = getattr(owner, name)

    def wrapped(*arguments, **settings):
        before()
        result = inner(*arguments, **settings)
        after(result)
        return result

    setattr(owner, name, wrapped)
