"""The history of a run: who tried which task when, how it ended, and what became of workers.

All other records describe the present: claims are deleted, and failures forgotten once a task is
done. A row is added here in the transaction that it tells of, and never changed. No decision of a
run depends on it, and equal runs may differ in it: its times are a wall clock's. Only a worker
whose connection broke during a commit finds here that it went through.
"""

from collections.abc import Iterable
from typing import Literal, NamedTuple

from dipaco.control.database.contract import Database
from dipaco.control.database.retry import retried
from dipaco.control.planning.tasks import Task

Outcome = Literal[
    # Attempts at a task:
    "done",  # its facts were recorded
    "superseded",  # another attempt recorded them first
    "saved",  # Its worker had to stop. The next goes on inside the phase.
    "given back",  # its worker had to stop, and saved nothing
    "postponed",  # an input was refused, damaged or lost, and is made again
    "error",
    "crash",  # its process was seen to die
    "lost",  # its worker fell silent for a whole lease
    # Workers:
    "joined",
    "left",
    "died",
    "silent",
    # The run:
    "command",
    "rollback",
]


class PastEvent(NamedTuple):
    """One row of the history."""

    number: int  # they grow
    task: Task | None  # None: of a worker, or of the run
    attempt: int | None
    worker: str
    machine: str  # The bits of its results depend on it.
    begun: float | None  # seconds of a wall clock: the host's, or the database server's
    ended: float
    outcome: Outcome
    reason: str


class History:
    """The history of one run."""

    def __init__(self, database: Database):
        self._database = database

    def after(self, number: int = 0) -> list[PastEvent]:
        """The events with a higher number, the first one first. On PostgreSQL a lower number may
        still be recorded after a higher one.
        """
        return [
            PastEvent(
                row[0],
                None if row[1] is None else Task(*row[1:5]),
                *row[5:],
            )
            for row in self._database.rows("history_after", number=number)
        ]

    @retried
    def prune(self, keep: int) -> int:
        """Deletes all but the newest events, and returns how many."""
        with self._database.transaction(is_durable=False):
            return self._database.change("prune_history", keep=keep)


def note_attempts(
    database: Database, dropped: Iterable[tuple], outcome: Outcome, reason: str = ""
) -> None:
    """Inside a transaction that has dropped claims: how they ended.

    Args:
      dropped: what a statement `drop_...` returned: task_id, attempt, worker, begun.
    """
    for task_id, attempt, worker, begun in dropped:
        database.change(
            "note_attempt",
            task_id=task_id,
            attempt=attempt,
            worker=worker,
            begun=begun,
            outcome=outcome,
            reason=reason,
        )


def note_event(database: Database, outcome: Outcome, worker: str = "", reason: str = "") -> None:
    """Inside a transaction: what became of a worker, or of the run."""
    database.change("note_event", worker=worker, outcome=outcome, reason=reason)
