"""Keeping: which objects a run still needs, and the one place that deletes the others.

The ledger decides. Workers delete what the facts of a task have superseded once these are recorded,
within `retention`. What a crash leaves goes when a process opens the run alone (`clean_up`) or when
the report is recorded. A finished run needs less: the rest can still be released, read, started
from and gone on with. `cleaning.py` removes more, if it is asked to.

Names are asked for again before each batch, so that no batch is decided by what was true before a
rollback, or before an object had to be made again. While a batch is deleted no run goes back, and
one that goes back all the same, since the worker was silent, ends the batch
(`control/keeping/retention.py`). Each task is collected after by the worker that finished it, so no
two do the same work.
"""

from collections.abc import Callable, Iterable

from dipaco.config import MODULAR
from dipaco.control.planning.tasks import SLICED, Claim, Task
from dipaco.receipt import Receipt
from dipaco.runs.run import Run
from dipaco.runs.sent_snapshots import superseded_snapshots
from dipaco.schedule.arm import Arm
from dipaco.store.layout import CONTRIBUTIONS, MODULES, OUTER_STATES, SNAPSHOTS
from dipaco.topology import ModuleId
from dipaco.workers.tasks.features import superseded_features
from dipaco.workers.tasks.prepare import delete_staged_text, superseded_text, superseded_texts

KEPT_EVENTS = 1_000_000  # events of the history, at about 200 bytes of the ledger each
PRUNE_EVERY = 500  # tasks, and at the end of a run
FOLDERS = (CONTRIBUTIONS, SNAPSHOTS, MODULES, OUTER_STATES)
BATCH = 64  # names that are deleted before the ledger is asked again which are not needed


def delete(run: Run, find: Callable[[], Iterable[str]], remove: Callable[[str], object]) -> None:
    """Deletes objects in batches.

    Args:
      find: asks the ledger which names are not needed. Names deleted already may be among them.
    """
    removed: set[str] = set()
    retention = run.ledger.retention

    def left() -> list[str]:
        return sorted(set(find()) - removed)[:BATCH]

    while left():
        batch = retention.begin_deleting(left)
        try:
            for name in batch:
                if not retention.may_delete():
                    break
                remove(name)
                removed.add(name)
        finally:
            retention.end_deleting()


def partial_snapshots_of(run: Run, claim: Claim) -> set[str]:
    """Names of the recorded partial snapshots of a task: more than one of a swarm's."""
    task = claim.task
    if task.kind not in ("train", "pretrain", "reroute"):
        return set()
    found = run.ledger.facts.partial_snapshots(task.arm, task.path, task.phase)
    return {one.receipt.name for one in found}


def delete_partial_snapshots(run: Run, claim: Claim, before: set[str]) -> None:
    """Deletes the partial snapshots of a task that were recorded before and are no longer."""
    if before:
        delete(run, lambda: before - partial_snapshots_of(run, claim), run.objects.delete)


def collect_after(run: Run, claim: Claim, partial_snapshots: set[str]) -> None:
    """Deletes what the facts of a task have superseded, once they are recorded.

    Args:
      partial_snapshots: names that were recorded before the task was finished.
    """
    task = claim.task
    delete_partial_snapshots(run, claim, partial_snapshots)
    if task.kind in ("outer", "train", "pretrain", "check"):
        delete(run, lambda: _superseded_by(run, task), lambda name: _remove(run, name))
    if task.step == "tokenise":
        delete(run, lambda: superseded_text(run, task.slice), run.objects.delete)
    if task.kind in SLICED and not task.step:
        delete_slices(run)
    is_last = task.kind == "report"  # nothing is written any more
    if task.kind == "sample":  # its texts may come after the report
        is_last = run.ledger.queue.is_finished()
    if is_last or claim.task_id % PRUNE_EVERY == 0:
        run.ledger.history.prune(KEPT_EVENTS)
    if is_last:
        collect_all(run)


def delete_slices(run: Run) -> None:
    """Deletes what slices of stages made, once what these make of it is recorded."""
    delete(run, lambda: (*superseded_texts(run), *superseded_features(run)), run.objects.delete)
    delete_staged_text(run)


def collect_all(run: Run) -> None:
    """Deletes contributions and snapshots that are superseded or that no fact names. A finished run
    loses all that it is not asked for. Only while nothing is written.
    """
    keep, is_finished = run.config.retention, run.ledger.queue.is_finished
    was_finished = is_finished()
    delete_slices(run)
    there = run.objects.names(*(FOLDERS if was_finished else (CONTRIBUTIONS, SNAPSHOTS)))

    def superfluous() -> set[str]:
        if is_finished() != was_finished:
            return set()  # It went back, and others may be writing.
        if was_finished:
            return there - _needed_when_finished(run)
        return there - run.ledger.retention.live_names(
            snapshots=keep.num_snapshots, contributions=keep.num_contributions
        )

    delete(run, superfluous, run.objects.delete)


def _remove(run: Run, name: str) -> None:
    run.objects.delete(name)
    if name.startswith(f"{CONTRIBUTIONS}/"):
        run.objects.delete_folder_if_empty(name)


def _superseded_by(run: Run, task: Task) -> list[str]:
    """Earlier contributions, snapshots and modules that the facts of a task have superseded."""
    if task.kind == "check":
        return _superseded_modules(run, task)
    if task.kind != "outer":
        return superseded_snapshots(run, task) + _superseded_modules(run, task)
    arm, keep = run.plan.arm(task.arm), run.config.retention.num_contributions
    retention = run.ledger.retention
    return [
        *retention.superseded_contributions(arm, task.module, task.phase + 1, keep),
        *_superseded_modules(run, task),
    ]


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


def _superseded_modules(run: Run, task: Task) -> list[str]:
    """Earlier phases of the modules that the task made or checked. Modules of a release stay, but
    not their outer states. So do the modules that the run was begun with, which no task would make
    again.
    """
    arm, newest = run.plan.arm(task.arm), task.phase + 1
    if run.config.retention.modules is None:
        return []
    if task.kind == "check":
        superseded = [
            (module, phase, end)
            for module in arm.topology.modules_of(task.path)
            for phase in _checked_phases(run, task)
            if (end := _kept_until(run, arm, module, phase)) is not None
        ]
    elif arm.has_outer_steps and task.kind != "outer":
        return []  # it makes contributions
    else:
        superseded = [
            (module, phase, newest)
            for module in ([task.module] if task.kind == "outer" else arm.topology.modules)
            for phase in range(
                _oldest_kept(run, arm, module, newest - 1), _oldest_kept(run, arm, module, newest)
            )
        ]
    names = [name for each in superseded for name in _superseded_module(run, arm, *each)]
    given = _given_names(run) if names else set()
    return [name for name in names if name not in given]


def _oldest_kept(run: Run, arm: Arm, module: ModuleId, newest: int) -> int:
    """The oldest phase of which a module is kept that is at the phase `newest`. Paths may have to
    train phases again of which no snapshot was sent, from modules of those phases.
    """
    keep = run.config.retention
    oldest = newest + 1 - keep.num_modules
    for path in arm.topology.paths_through(module):
        phase = newest
        for _ in range(keep.send_snapshots_every):
            before = arm.trained_before(path, phase)
            phase = phase if before is None else before
        oldest = min(oldest, phase)
    return max(oldest, 0)


def _kept_until(run: Run, arm: Arm, module: ModuleId, phase: int) -> int | None:
    """The phase that a module has to reach before the module of `phase` may go."""
    ends = range(phase + 1, arm.phases + 1)
    return next((end for end in ends if _oldest_kept(run, arm, module, end) > phase), None)


def _checked_phases(run: Run, task: Task) -> set[int]:
    """Phases of which a path may not need its modules any more now that it is checked: it has been
    at its best since, or this phase is not its best.
    """
    checks = (
        run.ledger.facts.checks(task.arm, at).get(task.path) for at in (task.phase, task.phase - 1)
    )
    return {task.phase} | {check.best_phase for check in checks if check is not None}


def _superseded_module(
    run: Run, arm: Arm, module: ModuleId, phase: int, newest: int
) -> Iterable[str]:
    """A module's parameters and outer state at a phase, once it is at the phase `newest`."""
    retention, since = run.ledger.retention, phase - 1
    stays = arm.is_evaluated(phase)
    if not arm.hold_out and not stays:
        # A module that does not step at every phase is one object over several.
        since = next((at for at in range(phase, 0, -1) if arm.is_evaluated(at)), -1)
    names = retention.superseded_modules(arm.name, module, phase, newest, since)
    if names and arm.hold_out and not stays:
        through = set(arm.topology.paths_through(module))
        checked = run.ledger.facts.checks(arm.name, phase).keys()
        stays = not through <= checked or bool(through & retention.paths_at_best(arm, phase))
    return (name for name in names if not stays or name.startswith(f"{OUTER_STATES}/"))


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
