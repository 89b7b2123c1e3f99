"""The task queue: which worker holds which task.

A claim is a *lease*. It expires when its worker falls silent or makes no progress, or when its
process is seen to have ended (`silent_workers.py`), and the task is ready again. The worker raises
a counter at every renewal. Any process that looks often, and sees the same count for as long as the
lease, may end it: no clocks of two machines are compared. A worker finishes a task under the
claim's number (`attempt`, a fencing token). A worker that was silent and came back has lost its
claim and can record nothing. An overdue task may be claimed a second time as a *backup*: both
claims are valid, and the first to commit counts (DiPaCo, arXiv 2403.10616, section 3).
"""

import json
import statistics
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

from dipaco.control import clock
from dipaco.control.claims.failures import count_crash, forget
from dipaco.control.claims.history import Outcome, note_attempts, note_event
from dipaco.control.database.contract import Database
from dipaco.control.database.retry import retried
from dipaco.control.planning.tasks import PRIORITY, Claim, Kind, Task
from dipaco.errors import ClaimLost

LEASE_SECONDS = 60.0
OVERDUE_FACTOR = 3.0  # a task gets a backup after this many times its usual duration
ALL_KINDS: tuple[Kind, ...] = tuple(PRIORITY)
NO_PROCESS = "its process was gone"


class HeldClaim(NamedTuple):
    """A claim whose lease has not expired, as `status` shows it."""

    task: Task
    worker: str
    attempt: int
    held_seconds: float  # Measured at its last renewal.
    stalled_seconds: float  # Time without progress, measured then.
    renewals: int
    lease_seconds: float


class UnfinishedTask(NamedTuple):
    """A task that is due and not done."""

    task: Task
    state: str  # waiting, ready, claimed, delayed, failed
    attempt: int  # Number of claims so far.


class Queue:
    """Claims on the tasks of one run."""

    def __init__(self, database: Database):
        self._database = database

    def claim(
        self,
        worker: str,
        kinds: Collection[Kind] = ALL_KINDS,
        *,
        lease_seconds: float = LEASE_SECONDS,
        own: Collection[tuple[str, int]] = (),
        is_patient: bool = False,
        left: Collection[tuple[str, int]] | None = None,
    ) -> Claim | None:
        """The most urgent task that is ready, now held by `worker`. None if no task is ready.

        Args:
          own: (arm, path) that are assigned to the worker. They come before others.
          is_patient: leaves a path to its assigned worker even while that trains another path.
          left: (arm, path) that are left to their assigned workers. None = all.
        """
        holder = {"worker": worker, "lease_seconds": lease_seconds}
        of = {"kinds": json.dumps(list(kinds)), "is_patient": int(is_patient)} | _left(left)
        owned = _paths(own) if own else ""
        claim = self._claim(holder, own=owned, **of)
        if own and claim is None:
            claim = self._claim(holder, own="", **of)
        return claim

    @retried
    def _claim(self, holder: dict[str, Any], **values: Any) -> Claim | None:
        # Need not be durable: losing a claim in a power cut costs a second claim and no facts.
        database, worker = self._database, holder["worker"]
        if database.is_remote:
            row = database.one("claim_task", **values, **holder)
            return None if row is None else _claim_of(worker, row)
        if database.one("next_task", **values, worker=worker) is None:
            return None  # found without the lock that others write under
        with database.transaction(is_durable=False):
            found = database.one("next_task", **values, worker=worker)
            if found is None:
                return None
            row = database.one("take_task", task_id=found[0])
            assert row is not None
            return self._hold(row, **holder)

    @retried
    def claim_backup(
        self,
        worker: str,
        *,
        lease_seconds: float = LEASE_SECONDS,
        factor: float = OVERDUE_FACTOR,
        is_waiting: Callable[[Task], bool] = lambda _: False,
    ) -> Claim | None:
        """A task that another worker has held for `factor` times as long as such tasks usually
        take. None if none is overdue. One that `is_waiting` says waits for others is not.
        """
        database = self._database
        for task_id in overdue_tasks(database, worker, factor, is_waiting):
            with database.transaction(is_durable=False):
                if database.one("lock_task", task_id=task_id) is not None:
                    row = database.one("claim_backup", task_id=task_id)
                    if row is not None:
                        return self._hold(row, worker, lease_seconds)
        return None

    @retried
    def has_others(
        self,
        worker: str,
        kinds: Collection[Kind],
        *,
        factor: float | None,
        is_waiting: Callable[[Task], bool] = lambda _: False,
        is_patient: bool = False,
        left: Collection[tuple[str, int]] | None = None,
    ) -> bool:
        """True if `worker`, which waits with a task in hand, has something else to see to: a task
        of these kinds is ready for it, one went wrong, or (unless `factor` is None) one is overdue.
        """
        of = {"kinds": json.dumps(list(kinds)), "is_patient": int(is_patient)} | _left(left)
        if self._database.one("has_others", worker=worker, own="", **of) is not None:
            return True
        return factor is not None and bool(
            overdue_tasks(self._database, worker, factor, is_waiting)
        )

    @retried
    def usual_seconds(self, arms: Iterable[str]) -> float | None:
        """Usual seconds of a path's phase, in the slowest of these arms. None before the first."""
        return usual_seconds(self._database, arms)

    @retried
    def renew(
        self, claim: Claim, lease_seconds: float = LEASE_SECONDS, stalled_seconds: float = 0.0
    ) -> bool:
        """The lease starts again now. False if the claim is lost.

        Args:
          stalled_seconds: the time for which the task made no progress.
        """
        with self._database.transaction(is_durable=False):
            renewed = self._database.change(
                "renew_claim",
                **key_of(claim),
                lease_seconds=lease_seconds,
                held_seconds=held_seconds(claim),
                stalled_seconds=stalled_seconds,
            )
        return bool(renewed)

    def end(self, claim: Claim, outcome: Outcome, reason: str = "") -> float:
        """Inside a transaction: drops all claims of the task, backups included. Returns for how
        many seconds `claim` held it. Raises `ClaimLost`.
        """
        dropped = self._database.rows("drop_claims_of_task", **_task(claim))
        own = [row for row in dropped if row[1:3] == (claim.attempt, claim.worker)]
        if not own:
            raise ClaimLost(task=claim.task)
        note_attempts(self._database, own, outcome, reason)
        others = [row for row in dropped if row not in own]
        note_attempts(self._database, others, "superseded")
        return held_seconds(claim)

    def end_finished(self, claim: Claim) -> tuple[float, int]:
        """Inside a transaction: as `end`, and the task is done. Returns also how often it had been
        opened again. Raises `ClaimLost`.
        """
        seconds = self.end(claim, "done")
        finished = self._database.one("finish_task", **_task(claim))
        if finished is None:
            raise ClaimLost(task=claim.task)
        if self._database.is_remote:  # a backup's that was made meanwhile
            late = self._database.rows("drop_claims_of_task", **_task(claim))
            note_attempts(self._database, late, "superseded")
        forget(self._database, claim.task_id)
        return seconds, finished[0]

    def is_finished_by(self, claim: Claim) -> bool:
        """True if this very attempt finished its task."""
        return self._database.one("is_finished_by", **key_of(claim)) is not None

    @retried
    def is_held(self, claim: Claim) -> bool:
        """True if the claim is still valid."""
        return self._database.one("holds_claim", **key_of(claim)) is not None

    @retried
    def give_back(self, claim: Claim) -> None:
        """The task is ready again. Nothing happens if the claim is lost."""
        with self._database.transaction():
            dropped = self._database.rows("drop_claim", **key_of(claim))
            note_attempts(self._database, dropped, "given back")
            reopen(self._database)

    @retried
    def give_back_all(self) -> int:
        """Every claimed task is ready again; only for a run without workers."""
        with self._database.transaction():
            dropped = self._database.rows("drop_all_claims")
            note_attempts(self._database, dropped, "crash", NO_PROCESS)
            return reopen(self._database)

    @retried
    def give_back_of(self, worker: str, *, crash: str = "", last_words: str = "") -> int:
        """The tasks of a worker that is known to be dead are ready again. Returns how many.

        Args:
          crash: how its process died, if it was seen to; counted against its tasks.
          last_words: the last of its output, for `status`.
        """
        with self._database.transaction():
            # Claims come before workers here, as where a claim is finished or found silent:
            # two transactions that lock them the other way round would wait for each other.
            dropped = self._drop_of(worker)
            words = last_words or crash
            if self._database.change("lose_worker", name=worker, last_words=words):
                note_event(self._database, "died", worker, words)
            return self._reopen(worker, dropped, crash)

    @retried
    def give_back_of_namesake(self, worker: str) -> int:
        """The same for a dead worker whose name another worker has taken over."""
        with self._database.transaction():
            return self._reopen(worker, self._drop_of(worker))

    def _drop_of(self, worker: str) -> list[tuple]:
        return self._database.rows("drop_claims_of_worker", worker=worker)

    def _reopen(self, worker: str, dropped: list[tuple], crash: str = "") -> int:
        note_attempts(self._database, dropped, "crash", crash or NO_PROCESS)
        for task_id, *_ in dropped:
            if crash:
                count_crash(self._database, task_id, worker, crash)
        reopen(self._database)
        return len(dropped)

    @retried
    def held(self) -> list[HeldClaim]:
        """Every claim whose lease has not been ended."""
        return [
            HeldClaim(Task(kind, arm, subject, phase), *claim)
            for kind, arm, subject, phase, *claim in self._database.rows("claims")
        ]

    def unfinished(self) -> list[UnfinishedTask]:
        """The most urgent first. Without a `sample` that has failed: nothing waits for it."""
        rows = self._database.rows("list_tasks")
        return [UnfinishedTask(Task(*row[:4]), *row[4:]) for row in rows]

    def is_finished(self) -> bool:
        """True if every task is done, or a `sample` that has failed."""
        return self._database.one("has_unfinished") is None

    def unfinished_kinds(self) -> set[str]:
        """Kinds of the tasks that are not done."""
        return {kind for (kind,) in self._database.rows("unfinished_kinds")}

    def task_counts(self) -> dict[tuple[str, str], dict[str, int]]:
        """(kind, arm) -> state -> number of tasks."""
        counts: dict[tuple[str, str], dict[str, int]] = {}
        for kind, arm, state, number in self._database.rows("count_tasks"):
            counts.setdefault((kind, arm), {})[state] = number
        return counts

    def _hold(self, row: tuple, worker: str, lease_seconds: float) -> Claim:
        claim = _claim_of(worker, row)
        self._database.change("add_claim", **key_of(claim), lease_seconds=lease_seconds)
        return claim


def reopen(database: Database) -> int:
    """Inside a transaction: claimed tasks whose last claim was dropped are ready again."""
    database.rows("lock_given_up")
    return database.change("reopen_tasks")


def let_wait(database: Database, claim: Claim) -> None:
    """Inside a transaction that has dropped `claim`, the last on its task: the task waits until a
    fact makes it due. With a backup's claim on it, it stays claimed.
    """
    database.rows("lock_given_up")
    database.change("end_attempt", task_id=claim.task_id, state="waiting")


def add_tasks(database: Database, tasks: Iterable[Task]) -> None:
    """Inside a transaction: makes tasks due. A task that is ready, claimed or done stays so."""
    for task in tasks:
        database.change("add_task", **task._asdict(), priority=PRIORITY[task.kind])


def add_outer_task(database: Database, task: Task, awaited: int) -> None:
    """Inside a transaction: an outer step is due if its module has `awaited` contributions."""
    values = {"priority": PRIORITY[task.kind], "awaited": awaited}
    database.change("add_outer_task", **task._asdict(), **values)


def _claim_of(worker: str, row: tuple) -> Claim:
    task_id, kind, arm, subject, phase, attempt = row
    return Claim(Task(kind, arm, subject, phase), task_id, attempt, worker, clock.now_seconds())


def held_seconds(claim: Claim) -> float:
    """For how long this process, which made the claim, has held it."""
    return clock.now_seconds() - claim.since


def _left(paths: Collection[tuple[str, int]] | None) -> dict[str, str]:
    return {"left": "" if paths is None else _paths(paths)}


def _paths(paths: Collection[tuple[str, int]]) -> str:
    return json.dumps([f"{arm}/{path}" for arm, path in paths])


def _task(claim: Claim) -> dict[str, Any]:
    return {"task_id": claim.task_id}


def key_of(claim: Claim) -> dict[str, Any]:
    """The values that name a claim in a query."""
    return {"task_id": claim.task_id, "attempt": claim.attempt, "worker": claim.worker}


def overdue_tasks(
    database: Database, worker: str, factor: float, is_waiting: Callable[[Task], bool]
) -> list[int]:
    """Numbers of the tasks that one other worker has held for `factor` times as long as a phase of
    their arm usually takes, the longest held first. One that `is_waiting` says waits for others is
    not overdue, nor is one of a path that trains an earlier phase again: what a second worker needs
    for it is being made.
    """
    held = database.rows("single_claims", worker=worker, factor=factor)
    usual = {arm: usual_seconds(database, [arm]) for arm in {arm for _, _, arm, *_ in held}}
    overdue = []
    for task_id, kind, arm, subject, phase, seconds in held:
        of_phase = usual[arm]
        is_overdue = of_phase is not None and seconds >= factor * of_phase
        task = Task(kind, arm, subject, phase)
        if is_overdue and not is_waiting(task) and not _is_being_prepared(database, task):
            overdue.append(task_id)
    return overdue


def _is_being_prepared(database: Database, task: Task) -> bool:
    return database.one("has_earlier_phase", **task._asdict()) is not None


def usual_seconds(database: Database, arms: Iterable[str]) -> float | None:
    """Usual seconds of a path's phase, in the slowest of these arms. None before the first."""
    medians = [
        statistics.median(seconds)
        for arm in arms
        if (seconds := [taken for (taken,) in database.rows("usual_seconds", arm=arm)])
    ]
    return max(medians, default=None)
