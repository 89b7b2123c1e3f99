"""Commits: the facts of a finished task and the tasks that they make due, in one transaction.

Record a fact only when its bytes are durable: a row without bytes cannot be repaired; bytes
without a row are deleted later (`workers/keeping.py`).
"""

import json
from collections.abc import Collection, Iterable

from dipaco.control.claims.assigned_workers import assignments_of
from dipaco.control.claims.history import note_attempts
from dipaco.control.claims.queue import (
    Queue,
    add_outer_task,
    add_tasks,
    held_seconds,
    key_of,
    let_wait,
    reopen,
)
from dipaco.control.database.contract import Database, KeyTaken
from dipaco.control.database.retry import retried, with_retry
from dipaco.control.facts.facts import Facts, PartialSnapshot
from dipaco.control.facts.quorums import Quorums
from dipaco.control.facts.recording import (
    lock_subjects,
    of_modules_ready,
    record,
    row_of_contribution,
    row_of_trained,
)
from dipaco.control.facts.reproducing import stands
from dipaco.control.planning.release import make_release
from dipaco.control.planning.scheduler import awaited_steps, due, quorum_steps
from dipaco.control.planning.tasks import (
    PRIORITY,
    Claim,
    Contribution,
    Fact,
    PathTrained,
    Task,
)
from dipaco.errors import ClaimLost
from dipaco.schedule.plan import Plan
from dipaco.topology import ModuleId


class Commit:
    """Ends claims on the tasks of one run, with what was done under them."""

    def __init__(self, database: Database, queue: Queue, quorums: Quorums, facts: Facts):
        self._database, self._queue = database, queue
        self._quorums, self._facts = quorums, facts

    def finish(
        self, plan: Plan, claim: Claim, facts: Iterable[Fact], *, assigns: bool = False
    ) -> list[Task]:
        """Records the facts of a finished task, and makes due what they make due. All or nothing.

        Args:
          assigns: the paths that were trained are assigned to the worker from now on.

        Returns:
          What is due now, without outer steps: only the database knows whether they are.

        Raises:
          ClaimLost: another worker holds the task, or has finished it. Nothing was recorded.
        """
        facts, has_tried = list(facts), False
        assignments = assignments_of(plan, facts, claim.worker) if assigns else {}

        def record() -> list[Task]:
            nonlocal has_tried
            if has_tried and self._queue.is_finished_by(claim):
                return []  # the connection broke during the commit, which went through
            has_tried = True
            if self._database.is_remote and self._finish_training(plan, claim, facts, assignments):
                return []
            return self._finish(plan, claim, facts, assignments)

        return with_retry(record, self._database.reconnect)

    @retried
    def release_with_snapshot(
        self,
        claim: Claim,
        partial_snapshot: PartialSnapshot,
        needed: Collection[ModuleId] = (),
    ) -> None:
        """Gives a training task back inside its phase. The next worker continues from there.

        Args:
          partial_snapshot: where the next worker continues.
          needed: the modules at the start of this phase that the next step needs. While one is
            missing, the task waits. Recording the last of them makes it due.

        Raises:
          ClaimLost: another worker holds the task. Nothing was recorded.
        """
        arm, phase = claim.task.arm, claim.task.phase
        with self._database.transaction():
            if (
                needed
            ):  # A commit that records a module locks this too, and then finds the task waiting.
                self._database.lock(of_modules_ready(arm, phase))
            dropped = self._database.rows("drop_claim", **key_of(claim))
            if not dropped:
                raise ClaimLost(task=claim.task)
            note_attempts(self._database, dropped, "saved", f"at step {partial_snapshot.step}")
            self._put_partial_snapshot(claim.task, partial_snapshot)
            self._database.change("forget_deaths", task_id=claim.task_id)
            if not self._facts.modules_at(arm, phase).issuperset(needed):
                let_wait(self._database, claim)
            reopen(self._database)
            self._database.change("credit_worker", name=claim.worker, seconds=held_seconds(claim))

    @retried
    def save_partial_snapshot(self, claim: Claim, partial_snapshot: PartialSnapshot) -> None:
        """Records how far a swarm's training task is. Raises as `release_with_snapshot`."""
        with self._database.transaction():
            if self._database.one("holds_claim", **key_of(claim)) is None:
                raise ClaimLost(task=claim.task)
            self._database.change("forget_deaths", task_id=claim.task_id)
            self._put_partial_snapshot(claim.task, partial_snapshot)

    def _finish_training(
        self, plan: Plan, claim: Claim, facts: list[Fact], assignments: dict[str, str]
    ) -> bool:
        """The most frequent commit, as one statement. False, with nothing changed, if the facts
        are of other kinds or the task was done again.
        """
        for fact in facts:
            if not isinstance(fact, PathTrained | Contribution):
                return False
            arm = plan.arm(fact.arm)
            if arm.has_quorum or arm.delay:
                return False
        outer = [
            {**task._asdict(), "priority": PRIORITY[task.kind], "awaited": awaited}
            for task, awaited in awaited_steps(plan, facts)
        ]
        trained = [row_of_trained(fact) for fact in facts if isinstance(fact, PathTrained)]
        contributions = [
            row_of_contribution(fact) for fact in facts if isinstance(fact, Contribution)
        ]
        try:
            ((done,),) = self._database.once(
                "finish_training",
                task_id=claim.task_id,
                attempt=claim.attempt,
                worker=claim.worker,
                held_seconds=held_seconds(claim),
                trained=json.dumps(trained),
                contributions=json.dumps(contributions),
                lock_keys=self._database.lock_keys(*lock_subjects(plan, facts)),
                outer=json.dumps(outer),
                assignments=json.dumps(assignments),
            )
            self._database.flush()
        except KeyTaken as error:
            raise ClaimLost(task=claim.task) from error
        return done == "done"

    def _finish(
        self, plan: Plan, claim: Claim, facts: list[Fact], assignments: dict[str, str]
    ) -> list[Task]:
        database = self._database
        try:
            with database.transaction():
                # First: a commit that waits for these locks has changed no task, for which their
                # holder would wait.
                database.lock(*lock_subjects(plan, facts))
                database.rows("lock_waiting")
                seconds, redone = self._queue.end_finished(claim)
                for fact in facts:
                    if not (redone and stands(database, claim.task, fact)):
                        record(database, fact)
                if redone:  # tasks that waited for it; what they still miss is found again
                    database.change("wake_tasks")
                for task, awaited in awaited_steps(plan, facts):
                    add_outer_task(database, task, awaited)
                for quorum in quorum_steps(plan, facts):
                    self._quorums.update(quorum)
                tasks = due(plan, facts, self._facts)
                scored = [(t.arm, t.phase) for t in tasks if t.kind == "score"]
                for arm, phase in dict.fromkeys(scored):
                    self._release(plan, arm, phase)
                add_tasks(database, tasks)
                for key, worker in assignments.items():
                    database.change("change_meta", key=key, value=worker)
                database.change("credit_worker", name=claim.worker, seconds=seconds)
        except KeyTaken as error:
            raise ClaimLost(task=claim.task) from error
        return tasks

    def _put_partial_snapshot(self, task: Task, partial_snapshot: PartialSnapshot) -> None:
        self._database.change(
            "put_partial_snapshot",
            arm=task.arm,
            path=task.path,
            phase=task.phase,
            **partial_snapshot.receipt._asdict(),
            step=partial_snapshot.step,
            batches=partial_snapshot.batches,
            losses=json.dumps(partial_snapshot.losses),
            seconds=partial_snapshot.seconds,
            norms=json.dumps(partial_snapshot.norms),
        )
        place = {"arm": task.arm, "path": task.path, "phase": task.phase}
        steps = [row[3] for row in self._database.rows("get_partial_snapshots", **place)]
        has_swarm = self._database.one("has_swarm_steps", arm=task.arm, path=task.path) is not None
        kept = _kept(partial_snapshot.step, steps) if has_swarm else {partial_snapshot.step}
        for step in set(steps) - kept:
            self._database.change("drop_partial_snapshot", **place, step=step)

    def _release(self, plan: Plan, arm: str, phase: int) -> None:
        routed_at, topology = plan.arm(arm).routed_at(phase), plan.arm(arm).topology
        companions = {
            name: receipt.digest
            for stage in (self._facts.stage("prepare"), self._facts.stage("route", routed_at))
            for name, receipt in stage.artifacts.items()
        }
        phases = [phase] * topology.num_paths
        if plan.arm(arm).hold_out:
            checks = self._facts.checks(arm, phase)
            phases = [checks[path].best_phase for path in range(topology.num_paths)]
        modules = {at: self._facts.receipts_at(arm, at) for at in set(phases)}
        release = make_release(arm, phase, topology, [modules[at] for at in phases], companions)
        self._database.change(
            "add_release", arm=arm, phase=phase, digest=release.digest, body=release.to_json()
        )


def _kept(newest: int, steps: Iterable[int]) -> set[int]:
    """Steps whose snapshots are kept: the newest, and the earliest of each power of two of ages."""
    first: dict[int, int] = {}
    for step in sorted(steps, reverse=True):
        first[(newest - step).bit_length()] = step
    return {newest, *first.values()}
