"""Quorums: modules that may step while a path is late, and which contributions each step takes.

Once enough contributions of a phase are in, the rest has a *grace period*: `outer.grace_seconds` by
the database's clock. Then the step is due without them. The worker that claims a step decides which
contributions it takes, before it begins: a step that is done again after a crash takes the same and
comes to the same bytes, whatever has arrived meanwhile.
A contribution is taken once (a primary key sees to that): by the step of its phase or, late, by
the next, which waits for it.
"""

from typing import NamedTuple

from dipaco.control.claims.queue import add_tasks, key_of
from dipaco.control.database.contract import Database, KeyTaken
from dipaco.control.database.retry import retried
from dipaco.control.facts.recording import of_contributions
from dipaco.control.planning.scheduler import QuorumStep
from dipaco.control.planning.tasks import Claim, Task
from dipaco.errors import ClaimLost
from dipaco.schedule.plan import Plan
from dipaco.topology import ModuleId


class TakenContribution(NamedTuple):
    """A contribution, and the outer step that took it."""

    phase: int  # The contribution's.
    path: int
    step: int  # the phase of the outer step

    @property
    def is_late(self) -> bool:
        return self.step > self.phase


class StepInGrace(NamedTuple):
    """An outer step with enough contributions, which waits for the rest until its grace ends."""

    module: ModuleId
    phase: int
    seconds_left: float


class Quorums:
    """The outer steps of one run that need not wait for every path."""

    def __init__(self, database: Database):
        self._database = database

    def update(self, step: QuorumStep) -> None:
        """Inside a transaction that holds the module's lock: makes the step due, or starts its
        grace, or leaves it as it is.
        """
        task, database = step.task, self._database
        of = {"arm": task.arm, "module": task.subject, "phase": task.phase}
        ((is_ready, count, count_before),) = database.rows("count_contributions", **of)
        if not is_ready or count < step.enough or count_before < step.awaited_before:
            return
        if count == step.awaited:
            database.change("drop_quorum", **of)
            add_tasks(database, [task])
        else:
            seconds = step.grace_seconds
            database.change("put_quorum", **of, epoch=database.epoch, grace_seconds=seconds)

    @retried
    def end_grace(self, plan: Plan) -> list[Task]:
        """Makes due the steps whose grace is over, and returns them. If the clock is another after
        a reboot, or was set back, the grace starts again. If it was set forth, it ends early.
        """
        database, epoch = self._database, self._database.epoch
        arms = [
            {"arm": arm.name, "grace_seconds": arm.grace_seconds, "epoch": epoch}
            for arm in plan.arms
            if arm.has_quorum
        ]
        if not any(database.rows("num_graces_over", **of)[0][0] for of in arms):
            return []
        with database.transaction():
            # The locks that a contribution's commit takes too. Each changes several rows.
            rows = database.rows("in_grace")
            database.lock(*(of_contributions(arm, module) for arm, module in rows))
            for of in arms:
                database.change("restart_grace", **of)
            tasks = [Task("outer", *row) for row in database.rows("end_grace", epoch=epoch)]
            add_tasks(database, sorted(tasks))
        return tasks

    @retried
    def take(self, claim: Claim) -> list[TakenContribution]:
        """The contributions that the claimed step takes, in the order of its sum: by phase (late
        ones first) and path. The first call decides, and later calls return the same.

        Raises:
          ClaimLost: another worker holds the step. Nothing was changed.
        """
        task, database = claim.task, self._database
        of = {"arm": task.arm, "module": task.subject, "step": task.phase}
        try:
            with database.transaction():
                if database.one("holds_claim", **key_of(claim)) is None:
                    raise ClaimLost(task=task)
                if not database.rows("taken", **of):
                    database.change("take", **of)
                return [TakenContribution(*row) for row in database.rows("taken", **of)]
        except KeyTaken as error:  # The worker that holds the step now has taken them.
            raise ClaimLost(task=task) from error

    def of_step(self, task: Task) -> list[TakenContribution]:
        """The contributions that an outer step has taken, in the order of its sum."""
        rows = self._database.rows("taken", arm=task.arm, module=task.subject, step=task.phase)
        return [TakenContribution(*row) for row in rows]

    def taken(self, arm: str) -> dict[tuple[ModuleId, int], list[TakenContribution]]:
        """(module, step) -> contributions in the order of the sum, for every step of an arm."""
        return self._by_step("all_taken", arm)

    def newest(self, arm: str) -> dict[tuple[ModuleId, int], list[TakenContribution]]:
        """The same of the newest step of every module."""
        return self._by_step("newest_taken", arm)

    def late(self, arm: str) -> dict[tuple[ModuleId, int], list[TakenContribution]]:
        """(module, step) -> late contributions. Steps of their own phase took all others."""
        return self._by_step("late_taken", arm)

    def num_taken(self, arm: str) -> int:
        """Contributions that steps of an arm have taken."""
        ((count,),) = self._database.rows("num_taken", arm=arm)
        return count

    def in_grace(self, arm: str) -> list[StepInGrace]:
        """Outer steps of an arm in their grace."""
        rows = self._database.rows("steps_in_grace", epoch=self._database.epoch)
        return [
            StepInGrace(ModuleId.parse(module), phase, seconds)
            for of, module, phase, seconds in rows
            if of == arm
        ]

    def _by_step(self, query: str, arm: str) -> dict[tuple[ModuleId, int], list[TakenContribution]]:
        found: dict[tuple[ModuleId, int], list[TakenContribution]] = {}
        for module, phase, path, step in self._database.rows(query, arm=arm):
            found.setdefault((ModuleId.parse(module), step), []).append(
                TakenContribution(phase, path, step)
            )
        return found
