"""Sweeping: removes what the recorded facts have superseded, as far as `retention` says so.

A crash before it leaves bytes behind, until `recover` comes by, or the report is written.
"""

from dipaco.control.tasks import Claim
from dipaco.runs.run import Run


def superseded_snapshots(run: Run, claim: Claim, but: str | None = None) -> list[str]:
    """What was saved part-way and is of no use once the task is recorded, or more of it is saved:
    all `but` that, which may be there already.
    """
    task = claim.task
    if task.kind not in ("train", "pretrain", "reroute"):
        return []
    partial_snapshot = run.ledger.facts.partial_snapshot(task.arm, task.path, task.phase)
    return (
        []
        if partial_snapshot is None or partial_snapshot.receipt.name == but
        else [partial_snapshot.receipt.name]
    )


def collect_after(run: Run, claim: Claim, partial_snapshot: list[str]) -> None:
    """Removes what the facts of this task have superseded: averaged contributions, snapshots and
    modules of earlier phases, and what was saved `partial_snapshot`.
    """
    task, objects, keep = claim.task, run.objects, run.config.retention
    if task.kind == "outer":
        of = task.arm, task.module, task.phase + 1, keep.num_contributions
        has_quorum = run.plan.arm(task.arm).has_quorum
        for name in run.ledger.retention.superseded_contributions(*of, has_quorum=has_quorum):
            objects.delete(name)
            objects.delete_folder_if_empty(name)
    if task.kind in ("train", "pretrain"):
        of = task.arm, task.path, task.phase, keep.num_snapshots
        for name in run.ledger.retention.superseded_snapshots(*of):
            objects.delete(name)
    for name in partial_snapshot:
        objects.delete(name)
    for name in _superseded_modules(run, claim):
        objects.delete(name)
    if task.kind == "report":  # the last task: nobody writes any more
        collect_all(run)


def collect_all(run: Run) -> None:
    """Removes the contributions and snapshots that no fact speaks of or that are superseded. Only
    where nobody writes.
    """
    keep = run.config.retention
    run.objects.delete_unreferenced(
        run.ledger.retention.live_names(
            snapshots=keep.num_snapshots, contributions=keep.num_contributions
        )
    )


def _superseded_modules(run: Run, claim: Claim) -> list[str]:
    """Of the module that the task made a newer phase of; released ones stay."""
    task = claim.task
    if task.kind not in ("outer", "train", "pretrain"):
        return []
    arm = run.plan.arm(task.arm)
    if arm.is_averaged and task.kind == "train":
        return []  # it sends contributions
    phase = task.phase + 1 - run.config.retention.num_modules
    # A release may have paths as they were at an earlier phase, their best.
    if phase < 0 or arm.is_evaluated(phase) or arm.stops_early:
        return []
    modules = [task.module] if task.kind == "outer" else arm.topology.modules
    return [
        name
        for module in modules
        for name in run.ledger.retention.superseded_modules(arm.name, module, phase)
    ]


def clean_up(run: Run) -> None:
    """Removes what dead processes left, when no process works on the run from its folder:
    half-written files and, with SQLite, whose run no other machine can work on, claims and
    superseded objects too.
    """
    if run.address.url is not None or not run.database_location.is_server:
        run.objects.delete_partial_writes()
    if not run.database_location.is_server:
        run.ledger.queue.give_back_all()
        collect_all(run)
