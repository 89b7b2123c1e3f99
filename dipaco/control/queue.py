"""The queue: who works on which task, and for how long that is believed.

A claim is a *lease*: it ends by itself when its worker falls silent, and the task is ready again.
Whoever finishes shows the claim's number (`attempt`); a worker that was silent, then came back, has
lost its claim and can record nothing. A late task may be claimed a second time as a *backup*: two
claims live, and the first to commit counts (DiPaCo, arXiv 2403.10616, section 3).
"""

import json
import statistics
from collections.abc import Collection
from typing import Any, NamedTuple

from dipaco.control.database import Database
from dipaco.control.patience import patient
from dipaco.control.tasks import PRIORITY, Claim, Kind, Task

LEASE_SECONDS = 60.0
LATE_FACTOR = 3.0  # times the usual duration after which a task gets a backup
ALL_KINDS: tuple[Kind, ...] = tuple(PRIORITY)
STACKED_KINDS = ("train",)  # of which several may be claimed, to be done together


class Held(NamedTuple):
    """A claim that lives, as `status` shows it."""

    task: Task
    worker: str
    attempt: int
    since_seconds: float
    lease_left_seconds: float


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
    ) -> Claim | None:
        """The most urgent task that is ready, now held by `worker`; None where nothing is."""
        claims = self.claim_stack(worker, kinds, limit=1, lease_seconds=lease_seconds)
        return claims[0] if claims else None

    @patient
    def claim_stack(
        self,
        worker: str,
        kinds: Collection[Kind] = ALL_KINDS,
        *,
        limit: int,
        lease_seconds: float = LEASE_SECONDS,
    ) -> list[Claim]:
        """The most urgent task that is ready; where it is one of training, up to `limit` of the
        same arm and phase, to be trained together.
        """
        # A claim that a power cut takes back was never worked on; so it need not be durable.
        with self._database.transaction(is_durable=False):
            who = {
                "worker": worker,
                "epoch": self._database.epoch,
                "patience_seconds": LEASE_SECONDS,
            }
            rows = self._database.rows("claim_tasks", kinds=json.dumps(list(kinds)), **who)
            if rows and limit > 1 and rows[0][1] in STACKED_KINDS:
                _, kind, arm, _, phase, _ = rows[0]
                rows += self._database.rows(
                    "claim_alike", kind=kind, arm=arm, phase=phase, limit=limit - 1, **who
                )
            return [self._hold(worker, row, lease_seconds) for row in rows]

    @patient
    def claim_backup(
        self, worker: str, *, lease_seconds: float = LEASE_SECONDS, factor: float = LATE_FACTOR
    ) -> Claim | None:
        """A task that another worker has held for `factor` times as long as such tasks usually
        take; None where none is late.
        """
        with self._database.transaction(is_durable=False):
            late = self._database.rows("late_tasks", worker=worker, epoch=self._database.epoch)
            for task_id, kind, arm, held_seconds in late:
                usual = self._database.rows("usual_seconds", arm=arm)
                if not usual or kind == "score":  # scores are short; what is usual is not recorded
                    continue
                if held_seconds > factor * statistics.median(seconds for (seconds,) in usual):
                    row = self._database.one("claim_backup", task_id=task_id)
                    if row is not None:
                        return self._hold(worker, row, lease_seconds)
        return None

    @patient
    def renew(self, claim: Claim, lease_seconds: float = LEASE_SECONDS) -> bool:
        """The lease lasts from now on; False where the claim is lost."""
        with self._database.transaction(is_durable=False):
            renewed = self._database.change(
                "renew_claim", **_key(claim), lease_seconds=lease_seconds
            )
        return bool(renewed)

    @patient
    def is_held(self, claim: Claim) -> bool:
        """Whether the claim is not lost."""
        return self._database.one("holds_claim", **_key(claim)) is not None

    @patient
    def give_back(self, claim: Claim) -> None:
        """The task is ready again, for whoever comes; where the claim is lost, nothing happens."""
        with self._database.transaction():
            self._database.rows("drop_claim", **_key(claim))
            self._database.change("reopen_tasks")

    @patient
    def give_back_all(self) -> int:
        """Every claimed task is ready again; to be called only where nobody works on this run."""
        with self._database.transaction():
            self._database.change("drop_all_claims")
            return self._database.change("reopen_tasks")

    @patient
    def give_back_of(self, worker: str) -> int:
        """The tasks of a worker that is known to be gone are ready again; how many."""
        with self._database.transaction():
            self._database.change("drop_claims_of_worker", worker=worker)
            self._database.change("end_worker", name=worker, state="lost")
            return self._database.change("reopen_tasks")

    @patient
    def reap(self) -> list[str]:
        """Ends the leases that have run out; the names of the workers that held them."""
        with self._database.transaction():
            expired = self._database.rows("drop_expired_claims", epoch=self._database.epoch)
            if expired:
                self._database.change("reopen_tasks")
                for _, worker in expired:
                    self._database.change("debit_worker", name=worker)
        return sorted({worker for _, worker in expired})

    @patient
    def held(self) -> list[Held]:
        """Every claim that lives."""
        return [
            Held(Task(kind, arm, subject, phase), worker, attempt, since, left)
            for kind, arm, subject, phase, worker, attempt, since, left in self._database.rows(
                "claims"
            )
        ]

    def _hold(self, worker: str, row: tuple, lease_seconds: float) -> Claim:
        task_id, kind, arm, subject, phase, attempt = row
        claim = Claim(Task(kind, arm, subject, phase), task_id, attempt, worker)
        self._database.change(
            "add_claim", **_key(claim), epoch=self._database.epoch, lease_seconds=lease_seconds
        )
        return claim


def _key(claim: Claim) -> dict[str, Any]:
    return {"task_id": claim.task_id, "attempt": claim.attempt, "worker": claim.worker}
