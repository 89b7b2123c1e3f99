"""Garbage collection: deletes objects that recorded facts have superseded, within `retention`.

A crash before it leaves bytes behind, until `clean_up` runs or the report is written. Once the
report is recorded, less is needed: what is left can be released, read, started from and gone on
with. `cleaning.py` removes more, if it is asked to.
"""

from dipaco.config import MODULAR
from dipaco.control.tasks import SLICED, Claim
from dipaco.receipt import Receipt
from dipaco.runs.run import Run
from dipaco.runs.sent_snapshots import superseded_snapshots
from dipaco.store.layout import CONTRIBUTIONS, MODULES, OUTER_STATES, SNAPSHOTS
from dipaco.workers.tasks.features import superseded_features
from dipaco.workers.tasks.prepare import delete_texts

KEPT_EVENTS = 1_000_000  # of the history, at about 200 bytes of the ledger each
PRUNE_EVERY = 500  # tasks, and at the end of a run


def superseded_partial_snapshots(run: Run, claim: Claim, but: str | None = None) -> list[str]:
    """Names of partial snapshots of the task that are useless once it is recorded, or once a newer
    one is saved, which is `but`.
    """
    task = claim.task
    if task.kind not in ("train", "pretrain", "reroute"):
        return []
    partial_snapshot = run.ledger.facts.partial_snapshot(task.arm, task.path, task.phase)
    if partial_snapshot is None or partial_snapshot.receipt.name == but:
        return []
    return [partial_snapshot.receipt.name]


def collect_after(run: Run, claim: Claim, partial_snapshots: list[str]) -> None:
    """Deletes what the facts of this task have superseded: averaged contributions, snapshots and
    modules of earlier phases, and its own partial snapshots.
    """
    task, objects, keep = claim.task, run.objects, run.config.retention
    if task.kind == "outer":
        of = task.arm, task.module, task.phase + 1, keep.num_contributions
        has_quorum = run.plan.arm(task.arm).has_quorum
        for name in run.ledger.retention.superseded_contributions(*of, has_quorum=has_quorum):
            objects.delete(name)
            objects.delete_folder_if_empty(name)
    if task.kind in ("train", "pretrain"):
        for name in superseded_snapshots(run, task):
            objects.delete(name)
    if task.kind in SLICED and not task.step:
        delete_slices(run)
    for name in partial_snapshots:
        objects.delete(name)
    for name in _superseded_modules(run, claim):
        objects.delete(name)
    is_last = task.kind == "report"  # nothing is written any more
    if task.kind == "sample":  # its texts may come after the report
        is_last = run.ledger.queue.is_finished()
    if is_last or claim.task_id % PRUNE_EVERY == 0:
        run.ledger.history.prune(KEPT_EVENTS)
    if is_last:
        collect_all(run)


def delete_slices(run: Run) -> None:
    """Deletes what slices of stages made, once what these make of it is recorded."""
    delete_texts(run)
    for name in superseded_features(run):
        run.objects.delete(name)


def collect_all(run: Run) -> None:
    """Deletes contributions and snapshots that are superseded or that no fact names, and of a
    finished run all that it is not asked for. Only while nothing is written.
    """
    keep = run.config.retention
    delete_slices(run)
    if run.ledger.queue.is_finished():
        folders = (CONTRIBUTIONS, SNAPSHOTS, MODULES, OUTER_STATES)
        run.objects.delete_unreferenced(_needed_when_finished(run), folders)
        return
    run.objects.delete_unreferenced(
        run.ledger.retention.live_names(
            snapshots=keep.num_snapshots, contributions=keep.num_contributions
        )
    )


def _needed_when_finished(run: Run) -> set[str]:
    """Names of contributions, snapshots, modules and outer states that a finished run keeps."""
    keep, plan, retention = run.config.retention, run.plan, run.ledger.retention
    snapshots = keep.num_finished_snapshots
    contributions = keep.num_contributions
    if keep.contributions is not None:
        # Only those who were late are waited for again, by a run that goes back.
        contributions = min(contributions, snapshots) if plan.arm(MODULAR).has_quorum else 0
    base = "" if keep.snapshots is None else plan.base.name
    live = retention.live_names(snapshots=snapshots, contributions=contributions, but=base)
    modules = retention.modules_of_finished(plan, MODULAR, states=snapshots)
    return live | modules | _given_names(run)


def _given_names(run: Run) -> set[str]:
    """Names of the objects that the run was begun with (`--from`, `--init-from`)."""
    base = run.given("base")
    receipts = [*([] if base is None else [base]), *(run.given("modules") or {}).values()]
    return {Receipt(*receipt).name for receipt in receipts}


def _superseded_modules(run: Run, claim: Claim) -> list[str]:
    """Earlier phases of the modules that the task made; those of a release stay, and those that
    the run was begun with, which no task would make again.
    """
    task = claim.task
    if task.kind not in ("outer", "train", "pretrain"):
        return []
    arm = run.plan.arm(task.arm)
    if arm.is_averaged and task.kind != "outer":
        return []  # it makes contributions
    phase = task.phase + 1 - run.config.retention.num_modules
    # With early stopping a release may take a path from an earlier phase.
    if phase < 0 or arm.is_evaluated(phase) or arm.stops_early:
        return []
    # A module that does not step at every phase is one object over several.
    since = next((at for at in range(phase, 0, -1) if arm.is_evaluated(at)), -1)
    modules = [task.module] if task.kind == "outer" else arm.topology.modules
    names = [
        name
        for module in modules
        for name in run.ledger.retention.superseded_modules(arm.name, module, phase, since)
    ]
    given = _given_names(run) if names else set()
    return [name for name in names if name not in given]


def clean_up(run: Run, *, is_first: bool) -> None:
    """Removes what dead processes left: half-written files and, with SQLite, whose run no other
    machine can work on, claims and superseded objects too.

    Args:
      is_first: no other process works on the run from its folder on this machine.
    """
    is_alone = is_first and run.address.url is None and not run.database_location.is_server
    run.objects.delete_partial_writes(is_alone=is_alone)
    if is_alone:
        run.ledger.queue.give_back_all()
        collect_all(run)
