"""Recovery: a damaged or missing object is made again by the task that made it.

All work is deterministic, so the new object has the digest of the lost one. The task that found the
damage is postponed. A recovery goes back as far as it must: a module needs its contributions, a
contribution its path's snapshot, and a path at its first phase neither.
"""

from pathlib import Path

from dipaco.control.planning.tasks import Claim, Task
from dipaco.errors import DipacoError
from dipaco.runs.run import Run
from dipaco.store.errors import ObjectMissing
from dipaco.store.layout import CONTRIBUTIONS, SNAPSHOTS
from dipaco.workers.errors import ContributionMissing, ContributionRefused


def recover(run: Run, claim: Claim, error: DipacoError) -> None:
    """Has the task that made the missing or damaged input of a claimed task done again. The claimed
    task is only given back if the store, asked again, has what was missing.

    Raises:
      The error itself: no task makes that object.
      ClaimLost: another worker has the task, and will find the damage itself.
      RecoveryFailed: doing it again does not help.
    """
    ledger, task, values = run.ledger, claim.task, error.values
    if isinstance(error, ContributionRefused):
        (contribution,) = [
            contribution
            for contribution in ledger.facts.contributions(task.arm, task.module, _phase_of(error))
            if contribution.path == values["path"]
        ]
        ledger.redos.refuse(claim, contribution, str(values["reason"]))
        return
    if isinstance(error, ContributionMissing):
        cause = Task("train", task.arm, str(values["path"]), _phase_of(error))
        ledger.redos.redo(claim, cause, f"contribution to {task.module}", "it is not there yet")
        return
    name = _name_of(run, error)
    if isinstance(error, ObjectMissing) and _turns_up(run, error, str(name)):
        ledger.queue.give_back(claim)
        return
    if name is not None and ledger.redos.forget_partial_snapshot(name):
        ledger.queue.give_back(claim)
        return
    cause = None if name is None else ledger.redos.maker_of(run.plan, name)
    if cause is None and str(name).startswith((SNAPSHOTS, CONTRIBUTIONS)):
        ledger.queue.give_back(claim)  # It was made again meanwhile, under another name.
        return
    if cause is None:
        cause = _router_of_shard(run, name)
    if cause is None or cause == task:
        raise error
    ledger.redos.redo(claim, cause, str(name), str(values.get("problem", "it is missing")))


def _turns_up(run: Run, error: ObjectMissing, name: str) -> bool:
    """True if a store of several machines has what was missed. A disk of this machine is not asked
    again.
    """
    if run.objects.remote is None and not run.database_location.is_server:
        return False
    sends_all = run.config.retention.send_snapshots_every == 1
    return run.objects.turns_up(error, was_sent=sends_all or not name.startswith(SNAPSHOTS))


def _phase_of(error: DipacoError) -> int:
    """Phase of a contribution. A late one is from the phase before the outer step's."""
    phase = error.values["phase"]
    assert isinstance(phase, int)
    return phase


def _router_of_shard(run: Run, name: str | None) -> Task | None:
    """The task that planned the rows of a shard."""
    for routing in run.ledger.facts.routings():
        if name in {receipt.name for receipt in run.shards_of(routing).plans}:
            return Task("route", phase=routing.phase)
    return None


def _name_of(run: Run, error: DipacoError) -> str | None:
    """Name of the object that an error of the store is about. None: it is about another file."""
    if "name" in error.values:
        return str(error.values["name"])
    file = Path(str(error.values["file"]))
    if not file.is_relative_to(run.objects.root):
        return None
    return file.relative_to(run.objects.root).as_posix()
