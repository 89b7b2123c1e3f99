"""Quorums: modules that may step while a path is late, and which contributions each step takes.

Once enough contributions of a phase are in, the rest has a *grace*, by the database's clock; then
the step is due without them. Which ones a step takes is said once, by whoever has claimed it and
before it begins: a step that is done again, after whatever crash, takes the same and comes to the
same bytes, however many have come meanwhile. A contribution is taken once (a primary key sees to
that): by the step of its own phase or, late, by the next, which waits for it.
"""

from typing import NamedTuple

from dipaco.control.database import Database, KeyTaken
from dipaco.control.plan import Plan
from dipaco.control.queue import add_tasks
from dipaco.control.retry import retried
from dipaco.control.scheduler import Quorum
from dipaco.control.tasks import Claim, Task
from dipaco.errors import ClaimLost
from dipaco.topology import ModuleId


class Taken(NamedTuple):
    """A contribution, and the outer step that took it."""

    phase: int  # of the contribution
    path: int
    step: int  # the phase of the outer step

    @property
    def is_late(self) -> bool:
        return self.step > self.phase


class WaitingStep(NamedTuple):
    """A module that has enough contributions, and waits for the rest."""

    module: ModuleId
    phase: int
    seconds_left: float


class Quorums:
    """Of one run."""

    def __init__(self, database: Database):
        self._database = database

    def look_at(self, quorum: Quorum) -> None:
        """Inside a transaction, in turn with others that count the module's contributions: the step
        is due now, or its grace begins, or neither.
        """
        task, database = quorum.task, self._database
        of = {"arm": task.arm, "module": task.subject, "phase": task.phase}
        ((is_there, arrived, before),) = database.rows("gathered", **of)
        if not is_there or arrived < quorum.enough or before < quorum.awaited_before:
            return
        if arrived == quorum.awaited:
            database.change("drop_quorum", **of)
            add_tasks(database, [task])
        else:
            epoch, grace = database.epoch, quorum.grace_seconds
            database.change("put_quorum", **of, epoch=epoch, grace_seconds=grace)

    @retried
    def end_grace(self, plan: Plan) -> list[Task]:
        """Steps that have waited for long enough are due; which. After a reboot, when nobody knows
        how long that was, they wait anew.
        """
        database, epoch = self._database, self._database.epoch
        ((count,),) = database.rows("num_over", epoch=epoch)
        if not count:
            return []
        with database.transaction():
            for arm in plan.arms:
                of = {"arm": arm.name, "grace_seconds": arm.grace_seconds}
                database.change("begin_grace_anew", epoch=epoch, **of)
            tasks = [Task("outer", *row) for row in database.rows("end_grace", epoch=epoch)]
            for task in sorted(tasks):
                add_tasks(database, [task])
        return tasks

    @retried
    def take(self, claim: Claim) -> list[Taken]:
        """What the claimed step takes, in the order in which it is to be summed: by phase (late
        ones first) and path. Said now, unless that was done before.

        Raises:
          ClaimLost: somebody else holds the step by now. Nothing was changed.
        """
        task, database = claim.task, self._database
        of = {"arm": task.arm, "module": task.subject, "step": task.phase}
        held = {"task_id": claim.task_id, "attempt": claim.attempt, "worker": claim.worker}
        try:
            with database.transaction():
                if database.one("holds_claim", **held) is None:
                    raise ClaimLost(task=task)
                if not database.rows("taken", **of):
                    database.change("take", **of)
                return [Taken(*row) for row in database.rows("taken", **of)]
        except KeyTaken as error:  # by whoever has the step now
            raise ClaimLost(task=task) from error

    def taken(self, arm: str) -> dict[tuple[ModuleId, int], list[Taken]]:
        """(module, step) -> what it took, in the order of the sum; for every step of an arm."""
        return self._by_step("all_taken", arm)

    def newest(self, arm: str) -> dict[tuple[ModuleId, int], list[Taken]]:
        """The same of the newest step of every module."""
        return self._by_step("newest_taken", arm)

    def late(self, arm: str) -> dict[tuple[ModuleId, int], list[Taken]]:
        """(module, step) -> those that were late; every other contribution was taken by the step of
        its own phase.
        """
        return self._by_step("late_taken", arm)

    def num_taken(self, arm: str) -> int:
        """Contributions that steps of an arm have taken."""
        ((count,),) = self._database.rows("num_taken", arm=arm)
        return count

    def waiting(self, arm: str) -> list[WaitingStep]:
        """Modules in their grace."""
        rows = self._database.rows("quorums", epoch=self._database.epoch)
        return [
            WaitingStep(ModuleId.parse(module), phase, seconds)
            for of, module, phase, seconds in rows
            if of == arm
        ]

    def _by_step(self, query: str, arm: str) -> dict[tuple[ModuleId, int], list[Taken]]:
        found: dict[tuple[ModuleId, int], list[Taken]] = {}
        for module, phase, path, step in self._database.rows(query, arm=arm):
            found.setdefault((ModuleId.parse(module), step), []).append(Taken(phase, path, step))
        return found
