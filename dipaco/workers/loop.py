"""The loop of a worker: claim a task, execute it, record its facts, until the run is finished.

One process can do a whole run, and a thousand can share it: nothing else does tasks. If a worker is
killed, its lease expires and the task is done again, to the same bytes. A worker that is asked to
stop saves a partial snapshot of its phase, which the next worker goes on from.
"""

import contextlib
import random
import threading
import time
from collections.abc import Callable, Collection
from queue import Empty, SimpleQueue

from dipaco import stopping
from dipaco.control.claims.assigned_workers import trained_alone
from dipaco.control.claims.queue import ALL_KINDS, LEASE_SECONDS
from dipaco.control.errors import DatabaseUnreachable, NotReproduced
from dipaco.control.facts.facts import PartialSnapshot
from dipaco.control.members.meta import WorkSummary
from dipaco.control.planning.tasks import FIRST_KINDS, Claim, Fact, Kind
from dipaco.errors import ClaimLost, DipacoError, MachineFault
from dipaco.runs.allocator import return_freed_memory
from dipaco.runs.run import Run
from dipaco.store.errors import ObjectDamaged, ObjectMissing
from dipaco.workers.callbacks import Callbacks
from dipaco.workers.claiming import Claimer
from dipaco.workers.errors import ContributionMissing, ContributionRefused, Preempted
from dipaco.workers.execution import execute
from dipaco.workers.failing import FailureCounter, fault_of_machine
from dipaco.workers.heartbeat import LeaseRenewer
from dipaco.workers.hosts import HostGroupBroken, Hosts
from dipaco.workers.keeping import (
    collect_after,
    delete_partial_snapshots,
    partial_snapshots_of,
)
from dipaco.workers.late_modules import modules_needed
from dipaco.workers.recovery import recover
from dipaco.workers.runners import OneHost, Runner

SINGLE_HOST_ONLY = ("reroute",)  # a worker of several hosts does not claim it
# Seconds between two looks of an idle worker. A task that becomes due waits at most a fifth of
# the time that the worker has been idle, and less than two seconds. A thousand idle workers ask 600
# questions a second.
MIN_WAIT_SECONDS, MAX_WAIT_SECONDS, WAIT_GROWTH = 0.02, 1.9, 1.25
GLIMPSE_SECONDS = 0.25  # within a wait, between two looks at the processes of this machine
LEAST_SHARE = 0.75  # a random share of the wait is waited, so that workers do not look in step


class Worker:
    """Does tasks of a run.

    Args:
      renewer: renews its leases. The caller starts it.
      lease_seconds: without a renewal for so long, others may claim its tasks.
      runner: takes the steps of paths, and has this worker's hosts, of which this process is the
        first. None is this process alone.
      cannot_train: the reason why it claims no tasks that train. It raises this when the text is
        prepared and nothing else is due.
    """

    def __init__(
        self,
        run: Run,
        name: str,
        callbacks: Callbacks,
        renewer: LeaseRenewer,
        *,
        kinds: Collection[Kind] = ALL_KINDS,
        lease_seconds: float = LEASE_SECONDS,
        runner: Runner | None = None,
        cannot_train: MachineFault | None = None,
    ):
        self._cannot_train = cannot_train
        self._run, self._name, self._callbacks, self._renewer = run, name, callbacks, renewer
        self._is_for_base = set(kinds) <= set(FIRST_KINDS)  # `dipaco pretrain`
        self._runner = runner or OneHost(run)
        self._kinds = kinds_done_by(self._runner.hosts, kinds)
        self._thread = threading.get_ident()
        self._failures = FailureCounter(run, name, callbacks)
        self._claimer = Claimer(run, name, self._kinds, self._failures, lease_seconds=lease_seconds)
        # Not an `Event`: a signal handler that sets one may deadlock on the lock that the
        # interrupted thread holds.
        self._stop_is_requested, self._wake_up = False, SimpleQueue[None]()

    def stop(self) -> None:
        """Asks the worker to stop after saving its phase. May be called by a signal handler."""
        self._stop_is_requested = True
        self._wake_up.put(None)

    @property
    def _is_asked_to_stop(self) -> bool:
        is_requested = self._stop_is_requested or self._runner.hosts.is_stop_requested
        return is_requested or self._renewer.command == "drain"

    def run_until_finished(self) -> bool:
        """Does tasks until the run has none left (True), or it is asked to stop (False). Waits
        while only other workers have tasks to do. A worker for base models ends when none of those
        kinds can become due.

        Raises:
          TaskFailed: the run cannot go on without a task that has failed.
          MachineFault: this machine cannot do its tasks, but others may.
        """
        wait_seconds, is_paused = MIN_WAIT_SECONDS, False
        while True:
            summary = self._run.ledger.meta.work_summary(self._kinds)
            self._renewer.receive(summary.command)
            if self._is_asked_to_stop:
                return False
            was_paused, is_paused = is_paused, self._renewer.command == "pause"
            if is_paused and not was_paused:
                self._callbacks.paused()
            if is_paused:
                self._claimer.begin_idling()
            if not is_paused and self.run_once(summary):
                wait_seconds = MIN_WAIT_SECONDS
                continue
            if self._is_over(summary):
                return True
            if self._cannot_train is not None and not is_paused and self._is_prepared:
                raise self._cannot_train
            if summary.has_delayed_or_failed:
                self._failures.check()
            self._wait(wait_seconds * random.uniform(LEAST_SHARE, 1.0), is_paused=is_paused)
            wait_seconds = min(WAIT_GROWTH * wait_seconds, MAX_WAIT_SECONDS)

    def _wait(self, seconds: float, *, is_paused: bool) -> None:
        """Waits so many seconds, less if it is woken up or, while it may claim, a worker of this
        machine has died.
        """
        reaper = self._run.ledger.reaper
        looks = reaper.sees_some_here and not is_paused
        glimpse_seconds = GLIMPSE_SECONDS if looks else seconds
        while seconds > 0 and not (looks and reaper.has_seen_one_end()):
            with contextlib.suppress(Empty):
                self._wake_up.get(timeout=min(seconds, glimpse_seconds))
                return
            seconds -= glimpse_seconds

    @property
    def _is_prepared(self) -> bool:
        return "prepare" not in self._run.ledger.queue.unfinished_kinds()

    def _is_over(self, summary: WorkSummary) -> bool:
        if not self._is_for_base:
            return not summary.has_unfinished
        # This worker makes a base model only. Later tasks never make one of its kinds due.
        return self._run.ledger.queue.unfinished_kinds().isdisjoint(FIRST_KINDS)

    def run_once(self, summary: WorkSummary | None = None) -> bool:
        """Does one task. False if no task is due.

        Args:
          summary: what a look at the ledger has just found. Ready, delayed and failed tasks are
            not asked for if it saw none. None: they are.

        Raises:
          RunOfOtherVersion, NameLost: the run goes on without this process. Nothing was done.
        """
        claim = self._claimer.claim(summary)
        if claim is None:
            return False
        self._renewer.hold(claim)
        try:
            # `dipaco upgrade` pins the run to another version and ends all claims. If it did so
            # before this claim, only this question stops a worker of the old version.
            self._renewer.receive(self._run.ledger.meta.command())
            self._do(claim)
        except BaseException as error:
            if not isinstance(error, DatabaseUnreachable):
                self._give_back_if_possible(claim)
            raise
        finally:
            self._renewer.hold(None)
        return_freed_memory()
        return True

    def _do(self, claim: Claim) -> None:
        """Executes one task and records its facts."""
        try:
            self._callbacks.task_started(claim)
            should_stop = self._make_should_stop(claim)
            should_leave = self._make_should_leave(should_stop)
            facts = execute(
                self._run, claim, self._callbacks, should_stop, self._runner, should_leave
            )
            self._finish(claim, facts)
        except Preempted as stopped:
            self._release(claim, stopped.partial_snapshot)
        except ClaimLost:
            self._lose(claim)
        except (ContributionRefused, ContributionMissing, ObjectDamaged, ObjectMissing) as error:
            self._postpone(claim, error)
        except (MachineFault, HostGroupBroken):
            raise
        except Exception as error:
            if (fault := fault_of_machine(error)) is not None:
                raise fault from error
            # After its claim is lost, a task may miss inputs: other workers have gone on.
            if isinstance(error, DipacoError) and not self._still_holds(claim):
                self._lose(claim)
            else:
                self._fail(claim, error)

    def _finish(self, claim: Claim, facts: list[Fact]) -> None:
        partial_snapshots = partial_snapshots_of(self._run, claim)
        run, assigns = self._run, self._run.objects.remote is not None
        try:
            run.ledger.commit.finish(run.plan, claim, facts, assigns=assigns)
        except ClaimLost:
            self._callbacks.claim_lost(claim)
            return
        except NotReproduced as error:
            self._fail(claim, error)
            return
        self._failures.succeed()
        self._claimer.begin_idling()
        if assigns:  # machines share nothing but a bucket: the path is assigned to this worker
            self._claimer.own.update(trained_alone(run.plan, facts))
        self._callbacks.task_finished(claim, facts)
        collect_after(self._run, claim, partial_snapshots)

    def _lose(self, claim: Claim) -> None:
        """The claim seems to be lost. If the ledger says otherwise, it is given back."""
        if self._still_holds(claim):
            self._run.ledger.queue.give_back(claim)
        else:
            self._callbacks.claim_lost(claim)

    def _give_back_if_possible(self, claim: Claim) -> None:
        """Has no effect on a task that is finished or lost. If it is not possible (a full disk),
        the task stays claimed until its lease expires.
        """
        with contextlib.suppress(DipacoError):
            self._run.ledger.queue.give_back(claim)

    def _fail(self, claim: Claim, error: Exception) -> None:
        """The worker goes on with other tasks, unless it may be in no state to. Raises `error` if
        it is no `DipacoError`, and what `FailureCounter.fail` raises.
        """
        is_defect = not isinstance(error, DipacoError)
        # With several hosts it may be no defect: a collective fails when another host is preempted.
        self._failures.fail(claim, error, is_crash=is_defect and self._runner.hosts.count > 1)
        if is_defect:
            raise error

    def _release(self, claim: Claim, partial_snapshot: PartialSnapshot) -> None:
        # The runner may have recorded this very snapshot already (`PhaseWork.save`).
        before = partial_snapshots_of(self._run, claim)
        try:
            needed = modules_needed(self._run, claim, partial_snapshot.step)
            self._run.ledger.commit.release_with_snapshot(claim, partial_snapshot, needed)
        except ClaimLost:
            self._callbacks.claim_lost(claim)
            return
        self._callbacks.task_released(claim, partial_snapshot.step)
        delete_partial_snapshots(self._run, claim, before)

    def _postpone(self, claim: Claim, error: DipacoError) -> None:
        """Has a missing or damaged input made again. The task fails if no task makes it, or making
        it again has not helped.
        """
        try:
            recover(self._run, claim, error)
        except ClaimLost:
            self._callbacks.claim_lost(claim)
        except DipacoError as reason:
            if isinstance(reason, MachineFault):
                raise
            self._fail(claim, reason)
        else:
            self._callbacks.task_postponed(claim, error)

    def _make_should_stop(self, claim: Claim) -> Callable[[], bool]:
        """The function that a task calls before each step. It renews a lease that was not renewed
        lately, and raises `ClaimLost` if the claim is lost. It is True as well if volunteers have
        come for the path.
        """

        def should_stop() -> bool:
            if threading.get_ident() == self._thread:  # the connection is this thread's
                self._renewer.renew_if_silent(self._run.ledger)
            if self._renewer.has_lost:
                raise ClaimLost(task=claim.task)
            # Volunteers have come for this path: the worker that leads them takes it.
            return self._is_asked_to_stop or self._renewer.volunteers_have_come

        return should_stop

    def _make_should_leave(self, should_stop: Callable[[], bool]) -> Callable[[], bool]:
        """Asked while a path waits for its modules: whether there is something else to do."""
        before: float | None = None  # when it was last asked

        def should_leave() -> bool:
            nonlocal before
            stopping.note_progress()
            now = time.monotonic()
            if before is not None:
                self._renewer.note_wait(now - before)
            before = now
            if should_stop():
                return True
            if self._renewer.command == "pause":
                return False
            return self._claimer.has_others()

        return should_leave

    def _still_holds(self, claim: Claim) -> bool:
        with contextlib.suppress(DipacoError):
            return self._run.ledger.queue.is_held(claim)
        return True


def kinds_done_by(hosts: Hosts, kinds: Collection[Kind]) -> list[Kind]:
    """Those of the kinds that a worker of these hosts claims."""
    return [kind for kind in kinds if hosts.count == 1 or kind not in SINGLE_HOST_ONLY]
