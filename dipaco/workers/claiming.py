"""The choice of the task that a worker takes next, in this order:

1. a ready task, the worker's own paths first;
2. a failed task whose delay is over;
3. a backup: a second claim of a task that another worker has held for too long;
4. a path that is left to its assigned worker, which trained it last, but has not taken it for as
   long.

Most looks find nothing, so expensive questions are asked rarely: once a heartbeat whether a worker
has fallen silent, once a lease about 3 and 4.
"""

import math
import random
import time
from collections.abc import Callable, Collection
from typing import Any

from dipaco.control.claims.queue import OVERDUE_FACTOR
from dipaco.control.members.meta import WorkSummary
from dipaco.control.planning.tasks import Claim, Kind, Task
from dipaco.runs.machine import machine
from dipaco.runs.run import Run
from dipaco.runs.sent_snapshots import paths_of_other_machines
from dipaco.workers.failing import FailureCounter
from dipaco.workers.heartbeat import heartbeat_seconds


class Claimer:
    """Claims tasks for one worker.

    Args:
      lease_seconds: after as long without a renewal, others may claim its tasks.
    """

    def __init__(
        self,
        run: Run,
        name: str,
        kinds: Collection[Kind],
        failures: FailureCounter,
        *,
        lease_seconds: float,
    ):
        self._run, self._name, self._kinds, self._failures = run, name, kinds, failures
        self._lease_seconds = lease_seconds
        # (arm, path) of which it has trained the newest phase.
        self.own: set[tuple[str, int]] = set()
        self._overdue_tasks = _Regularly(lease_seconds)
        # A worker that computes looks for them as well (heartbeat.py).
        self._silent_workers = _Regularly(heartbeat_seconds(lease_seconds))
        self._idle_since = time.monotonic()

    def claim(self, summary: WorkSummary | None) -> Claim | None:
        """The task to do next. None if no task is due.

        Args:
          summary: what a look at the ledger has just found. Ready, delayed and failed tasks are not
            asked for if it saw none. None: they are.
        """
        queue = self._run.ledger.queue
        has_ready = summary is None or summary.has_ready
        has_delayed_or_failed = summary is None or summary.has_delayed_or_failed
        has_ready |= self._end_grace()
        options: dict[str, Any] = {
            "lease_seconds": self._lease_seconds,
            "own": self.own,
            "is_patient": self._is_patient,
        }
        # First: the tasks of silent workers are older than most that are ready.
        reaped = self._reap()
        claim: Claim | None = None
        if has_ready or reaped:
            claim = queue.claim(self._name, self._kinds, **options)
        if claim is None and (has_delayed_or_failed or reaped) and self._failures.end_delays():
            claim = queue.claim(self._name, self._kinds, **options)
        if claim is None and "train" in self._kinds and self._overdue_tasks.is_due():
            of_others = paths_of_other_machines(self._run, machine())
            claim = queue.claim_backup(
                self._name,
                factor=self._overdue_factor,
                lease_seconds=self._lease_seconds,
                is_waiting=self._cannot_have_backup(of_others),
            )
            if claim is None and has_ready and self._has_waited_for_assigned:
                claim = queue.claim(self._name, self._kinds, left=of_others, **options)
            if claim is not None:  # an object that it lacks may have to be made first
                self._overdue_tasks.make_due()
        return claim

    def begin_idling(self) -> None:
        """Counts idle time from now: a task has ended, or the run is paused."""
        self._idle_since = time.monotonic()

    def has_others(self) -> bool:
        """True if there is other work for a worker that waits with a task in hand."""
        self._reap()
        self._end_grace()
        self._failures.end_delays()  # a delayed task needs nobody before
        looks_for_overdue = "train" in self._kinds and self._overdue_tasks.is_due()
        of_others = paths_of_other_machines(self._run, machine()) if looks_for_overdue else None
        has_others = self._run.ledger.queue.has_others(
            self._name,
            self._kinds,
            factor=self._overdue_factor if looks_for_overdue else None,
            is_waiting=self._cannot_have_backup(of_others or ()),
            is_patient=self._is_patient,
            left=of_others if looks_for_overdue and self._has_waited_for_assigned else None,
        )
        if has_others and looks_for_overdue:
            self._overdue_tasks.make_due()  # it may be the overdue one that it leaves for
        return has_others

    def _reap(self) -> bool:
        """Ends the claims of silent workers. Returns whether there were any. Looks once a
        heartbeat, and at once if a worker of this machine is seen to have died.
        """
        reaper = self._run.ledger.reaper
        is_due = reaper.has_seen_one_end() or self._silent_workers.is_due()
        return is_due and bool(reaper.reap(self._name))

    @property
    def _is_patient(self) -> bool:
        """True if snapshots may be on the disk of the path's assigned worker alone."""
        has_bucket = self._run.objects.remote is not None
        return has_bucket and self._run.config.retention.most_unsent > 0

    def _end_grace(self) -> bool:
        """Makes outer steps due whose grace is over. Returns whether there were any."""
        return "outer" in self._kinds and bool(self._run.ledger.quorums.end_grace(self._run.plan))

    @property
    def _overdue_factor(self) -> float:
        # The seconds recorded for a path are its share of a synchronous task.
        arms = self._run.plan.arms
        num_paths = [arm.topology.num_paths for arm in arms if arm.is_synchronous]
        unsent = self._run.config.retention.most_unsent if self._is_patient else 0
        return OVERDUE_FACTOR * max([1, *num_paths]) + unsent  # phases that come before it

    @property
    def _has_waited_for_assigned(self) -> bool:
        """True if this worker has been idle for as long as it takes a task to be overdue: it may
        then take paths that are left to their assigned workers. One of these may have stopped
        working, and renew its leases all the same.
        """
        idle_seconds = time.monotonic() - self._idle_since
        usual = self._run.ledger.queue.usual_seconds(arm.name for arm in self._run.plan.arms)
        return usual is not None and idle_seconds >= self._overdue_factor * usual

    def _cannot_have_backup(self, of_others: Collection[tuple[str, int]]) -> Callable[[Task], bool]:
        def cannot(task: Task) -> bool:
            return (task.arm, task.path) in of_others or waits_for_modules(self._run, task)

        return cannot


def waits_for_modules(run: Run, task: Task) -> bool:
    """True if a path waits for modules that have not stepped yet. Its task is not overdue then."""
    arm = run.plan.arm(task.arm)
    if task.kind != "train" or not arm.goes_ahead(task.path, task.phase):
        return False
    ready = run.ledger.facts.modules_at(task.arm, task.phase)
    return not ready.issuperset(arm.topology.modules_of(task.path))


class _Regularly:
    """Due at once, and then about every so many seconds, at other moments in each worker."""

    def __init__(self, seconds: float):
        self._seconds, self._next_seconds = seconds, -math.inf  # the monotonic clock's

    def is_due(self) -> bool:
        now = time.monotonic()
        if now < self._next_seconds:
            return False
        self._next_seconds = now + self._seconds * random.uniform(0.75, 1.25)
        return True

    def make_due(self) -> None:
        """Makes it due at once."""
        self._next_seconds = -math.inf
