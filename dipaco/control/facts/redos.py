"""Redoing tasks: when a recorded result is lost or wrong, the task that made it is opened again,
and the task that needs it waits. Each refusal is recorded with its reason.

Tasks are deterministic, so the new result has the recorded digest; reproducing.py says what becomes
of any other.
"""

from typing import NamedTuple

from dipaco.control.claims.history import note_attempts
from dipaco.control.claims.queue import key_of, let_wait
from dipaco.control.database.contract import Database
from dipaco.control.database.retry import retried
from dipaco.control.errors import RecoveryFailed
from dipaco.control.facts.facts import Facts
from dipaco.control.facts.recording import stage_done
from dipaco.control.keeping.cleaning import lock_whole_run
from dipaco.control.keeping.retention import stop_deletions
from dipaco.control.planning.tasks import PRIORITY, SLICED, Claim, Contribution, Kind, Task
from dipaco.errors import ClaimLost
from dipaco.schedule.plan import Plan

MOST_REDOS = 3  # A task is redone so often for another one; then a person must look.


class Refusal(NamedTuple):
    """An object that was refused or found damaged."""

    what: str  # its name in the store
    reason: str
    task: str  # The task that was done again for it.
    worker: str  # The worker that found it.


class Redos:
    """Opens finished tasks of one run again."""

    def __init__(self, database: Database):
        self._database = database

    @retried
    def redo(
        self, claim: Claim, cause: Task, what: str, reason: str, refused: Contribution | None = None
    ) -> None:
        """An input of `claim` is lost: opens the task that made it, and lets this one wait.

        Args:
          what: name of the object that is damaged, or was refused.
          reason: the defect. `status` shows it.
          refused: a contribution to delete.

        Raises:
          ClaimLost: nothing was changed.
          RecoveryFailed: `cause` has been opened again for this task `MOST_REDOS` times, and it is
            still not done.
        """
        with self._database.transaction():
            # What was superseded may be an input of the task that is done again.
            lock_whole_run(self._database)
            stop_deletions(self._database)
            # A second claim stays: its worker may have what this one lacks.
            dropped = self._database.rows("drop_claim", **key_of(claim))
            if not dropped:
                raise ClaimLost(task=claim.task)
            note_attempts(self._database, dropped, "postponed", f"{what}: {reason}")
            key = cause._asdict()
            found = self._database.one("get_task", **key)
            assert found is not None, cause
            cause_id, state = found
            is_opened = state == "done"  # If not, it is being done again already.
            pair = {"task_id": claim.task_id, "cause_id": cause_id, "more": int(is_opened)}
            ((times,),) = self._database.rows("count_recovery", **pair)
            if is_opened:
                if times > MOST_REDOS:
                    raise RecoveryFailed(task=cause, what=what, reason=reason, times=MOST_REDOS)
                self._database.change("redo_task", **key)
            let_wait(self._database, claim)
            if refused is not None:
                self._database.change(
                    "drop_contribution",
                    arm=refused.arm,
                    module=str(refused.module),
                    phase=refused.phase,
                    path=refused.path,
                )
            self._database.change(
                "put_refusal", what=what, reason=reason, task=str(cause), worker=claim.worker
            )

    def refuse(self, claim: Claim, contribution: Contribution, reason: str) -> None:
        """Deletes a wrong contribution. Its path is trained again. Raises as `redo`."""
        path = str(contribution.path)
        cause = Task("train", contribution.arm, path, contribution.phase)
        self.redo(claim, cause, contribution.message.name, reason, refused=contribution)

    def refusals(self) -> list[Refusal]:
        """The newest hundred, the newest first."""
        return [Refusal(*row) for row in self._database.rows("refusals")]

    def refusals_after(self, number: int) -> dict[int, Refusal]:
        """Number -> refusal, of those with a higher one. On PostgreSQL a lower number may still be
        recorded after a higher one.
        """
        rows = self._database.rows("refusals_after", number=number)
        return {number: Refusal(*row) for number, *row in rows}

    def newest_refusal(self) -> int:
        """The number of the newest refusal. 0 if there is none."""
        ((number,),) = self._database.rows("newest_refusal")
        return number

    def num_refusals(self) -> int:
        """Number of refusals in the whole run."""
        ((count,),) = self._database.rows("num_refusals")
        return count

    def maker_of(self, plan: Plan, name: str) -> Task | None:
        """The task that made an object. None if the run can go on without it."""
        one = self._database.one
        for table in ("trained", "contributions"):
            if row := one(f"maker_in {table}", name=name):
                return _training(plan, *row)
        if rows := self._database.rows("maker_of_module", name=name):
            # Equal parameters are one object: a dense arm starts with the base model's. The task
            # that made them first makes them again.
            makers = [_maker_of_module(plan, *row) for row in rows]
            return min(makers, key=lambda task: (PRIORITY[task.kind], task.phase))
        kinds: dict[str, Kind] = {"scores": "score", "labels": "label"}
        for table, kind in kinds.items():
            if row := one(f"maker_in {table}", name=name):
                arm, path, phase = row
                return Task(kind, arm, str(path), phase)
        for stage in (stage_done(*row) for row in self._database.rows("list_stages")):
            if name in {receipt.name for receipt in stage.artifacts.values()}:
                return Task(stage.stage, phase=stage.phase)
        for stage in SLICED:
            for fact in Facts(self._database).slices(stage):
                if name in {receipt.name for receipt in fact.artifacts.values()}:
                    return fact.task
        return None

    @retried
    def forget_partial_snapshot(self, name: str) -> bool:
        """Deletes the partial snapshot called `name`. False if there is none."""
        with self._database.transaction():
            return bool(self._database.change("drop_partial_snapshot_named", name=name))


def _training(plan: Plan, arm: str, path: int, phase: int) -> Task:
    if plan.arm(arm).is_synchronous:
        path = 0  # one task trains all paths
    return Task("pretrain" if arm == plan.base.name else "train", arm, str(path), phase)


def _maker_of_module(plan: Plan, arm: str, module: str, phase: int) -> Task:
    if phase == 0:
        return Task("route")
    if plan.arm(arm).has_outer_steps:
        return Task("outer", arm, module, phase - 1)
    return _training(plan, arm, 0, phase - 1)
