"""Failures: attempts at a task that went wrong in a row, and when a task is given up.

Three kinds are counted. An *error* was raised by the task. After `MOST_ERRORS` of them the task is
`failed`, until a person has it tried again. A *crash* is a process that was seen to die by a signal
(out of memory, a fault of a library, kill -9). After `MOST_CRASHES` the task is `failed` as well. A
*loss* is a worker that fell silent. It may have been preempted with its machine, so losses never
make a task fail, however many there are.

In between the task is `delayed`: it waits longer each time, and other tasks go first. The first
`FREE_DEATHS` crashes and losses delay nothing, so that preempted work goes on at once. After a loss
it waits for a lease at most: where all machines are so busy that they lose their leases, it is the
same few tasks that are lost again and again, and the run must go on when the machines do.

Nothing waits for a task `sample`: a run whose texts cannot be made is not stuck, and is finished
when all its other tasks are done. `status` says what failed, and it can be tried again.

Finishing the task forgets everything. A partial snapshot forgets crashes and losses, since the task
got on.
"""

from typing import NamedTuple

from dipaco.control.claims.history import note_attempts
from dipaco.control.database.contract import Database
from dipaco.control.database.retry import retried
from dipaco.control.planning.tasks import Claim, Task
from dipaco.errors import ClaimLost

COUNTED = ("failures", "recoveries")  # tables whose rows are forgotten once a task is done
SILENT = "its worker fell silent"
ENDED = "its worker's process has ended"
MOST_ERRORS = 3
MOST_CRASHES = 10  # Ten preemptions in a row that a launcher outlives were never seen.
FREE_DEATHS = 3  # crashes and losses that delay nothing
LONGEST_WAIT_SECONDS = 600.0
WAIT_FACTOR = 4.0  # waits of 1, 4, 16, ... seconds
MOST_GROWTH = 5  # The longest wait is reached by then. Losses are counted without end.


class Failure(NamedTuple):
    """A task whose last attempts went wrong."""

    task: Task
    state: str  # The task's state: delayed, failed; or ready, claimed, if it is being tried again.
    errors: int
    crashes: int
    losses: int
    reason: str  # The last attempt's.
    worker: str  # The last attempt's.
    seconds_left: float  # Time until a delayed task is tried again.

    @property
    def attempts(self) -> int:
        return self.errors + self.crashes + self.losses


class Delays(NamedTuple):
    """Result of a look at the tasks that went wrong."""

    have_ended: bool  # some are ready again
    have_failed: bool  # some have failed for good


class Failures:
    """The failures of one run."""

    def __init__(self, database: Database):
        self._database = database

    @retried
    def fail(
        self, claim: Claim, reason: str, *, is_lasting: bool = False, is_crash: bool = False
    ) -> bool:
        """Ends a claim whose task raised an error.

        Args:
          is_lasting: trying again would meet it again. The task fails at once.
          is_crash: it may have been caused by a process that died, and counts as one.

        Returns:
          Whether the task has failed now; else it is tried again later.

        Raises:
          ClaimLost: another worker has the task. Nothing is counted.
        """
        database = self._database
        with database.transaction():
            database.rows("lock_waiting")
            key = {"task_id": claim.task_id, "attempt": claim.attempt, "worker": claim.worker}
            dropped = database.rows("drop_claim", **key)
            if not dropped:
                raise ClaimLost(task=claim.task)
            note_attempts(database, dropped, "crash" if is_crash else "error", reason)
            state = _count(
                database,
                claim.task_id,
                claim.worker,
                reason,
                errors=int(not is_crash),
                crashes=int(is_crash),
                is_lasting=is_lasting,
            )
            database.change("wake_tasks_of", cause_id=claim.task_id)
        return state == "failed"

    def stuck(self) -> list[Failure]:
        """The failed tasks, if the run cannot go on without them; else none."""
        if self._database.one("is_stuck") is None:
            return []
        return [
            failure
            for failure in self.list()
            if failure.state == "failed" and failure.task.kind != "sample"
        ]

    @retried
    def end_delays(self) -> Delays:
        """Delayed tasks that have waited long enough are ready again. One question, without a lock,
        if there are none.
        """
        rows = self._database.rows("delayed_or_failed_tasks", epoch=self._database.epoch)
        due = [task_id for task_id, state, is_over in rows if state == "delayed" and is_over]
        if due:
            with self._database.transaction(is_durable=False):
                for task_id in due:
                    self._database.change("end_delay", task_id=task_id)
        return Delays(bool(due), any(state == "failed" for _, state, _ in rows))

    @retried
    def retry(self, task: Task | None = None) -> list[Task]:
        """Makes failed and delayed tasks ready, as if never tried: one, or all."""
        again = []
        with self._database.transaction():
            for failure in self.list():
                if task in (None, failure.task):
                    row = self._database.one("retry_task", **failure.task._asdict())
                    if row is not None:
                        forget(self._database, row[0])
                        again.append(failure.task)
        return again

    def list(self) -> list[Failure]:
        """The failed ones first, then those tried most often."""
        rows = self._database.rows("failures")
        return [Failure(Task(*row[:4]), *row[4:]) for row in rows]


def count_crash(database: Database, task_id: int, worker: str, reason: str) -> None:
    """Inside a transaction, after the claim was dropped: its process was seen to die."""
    _count(database, task_id, worker, reason, crashes=1)


def count_loss(
    database: Database, task_id: int, worker: str, reason: str, lease_seconds: float
) -> None:
    """Inside a transaction, after the claim was dropped: its worker was not heard of any more."""
    _count(database, task_id, worker, reason, losses=1, most_seconds=lease_seconds)


def forget(database: Database, task_id: int) -> None:
    """Inside a transaction: the task is done."""
    for table in COUNTED:
        database.change(f"forget {table}", task_id=task_id)


def wait_seconds(errors: int, deaths: int) -> float:
    """Delay of a task after this many errors, and crashes and losses."""
    number = errors + max(0, deaths - FREE_DEATHS)
    if not number:
        return 0.0
    return min(WAIT_FACTOR ** min(number - 1, MOST_GROWTH), LONGEST_WAIT_SECONDS)


def _count(
    database: Database,
    task_id: int,
    worker: str,
    reason: str,
    *,
    errors: int = 0,
    crashes: int = 0,
    losses: int = 0,
    is_lasting: bool = False,
    most_seconds: float = LONGEST_WAIT_SECONDS,
) -> str:
    """Counts an attempt whose claim was dropped. Returns the state that the task is to have. While
    a backup of it lives, it stays claimed.
    """
    row = database.one(
        "count_failure",
        task_id=task_id,
        errors=errors,
        crashes=crashes,
        losses=losses,
        reason=reason,
        worker=worker,
        epoch=database.epoch,
    )
    assert row is not None
    errors, crashes, losses = row
    seconds = min(wait_seconds(errors, crashes + losses), most_seconds)
    has_failed = is_lasting or errors >= MOST_ERRORS or crashes >= MOST_CRASHES
    state = "failed" if has_failed else "delayed" if seconds > 0 else "ready"
    database.change("put_delay", task_id=task_id, wait_seconds=seconds)
    database.change("end_attempt", task_id=task_id, state=state)
    return state
