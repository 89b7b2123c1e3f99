"""Rollback: sets the modular model back to an earlier phase, as it was recorded."""

import time
from collections.abc import Callable, Hashable

from dipaco.config import MODULAR
from dipaco.control.claims.queue import LEASE_SECONDS
from dipaco.control.ledger import Ledger
from dipaco.control.planning.scheduler import due
from dipaco.control.planning.tasks import Contribution, Fact, ModuleReady, Task
from dipaco.errors import WorkersActive
from dipaco.plural import listed
from dipaco.receipt import Receipt
from dipaco.runs.run import Run
from dipaco.runs.sent_snapshots import is_sent
from dipaco.store.errors import ObjectDamaged, ObjectMissing
from dipaco.workers.errors import CannotRollBack, CannotUndo
from dipaco.workers.keeping import delete

POLL_SECONDS = 0.5


def roll_back(run: Run, phase: int) -> dict[str, int]:
    """Goes back to the start of `phase`. Returns how many facts of each kind were set aside.

    Everything that training goes on from is read and checked first.

    Raises:
      CannotRollBack: it was never at that phase, is at it, or its bytes were deleted or lost.
      WorkersActive: a worker holds a lease, or is deleting objects.
    """
    if run.ledger.cleanings.removed() is not None:
        problem = "`dipaco clean` has removed what it would go on from."
        raise CannotRollBack(phase=phase, problem=problem)
    while True:
        token = run.ledger.rollbacks.begin()
        _check_phase(run, phase)
        _check_bytes(run, phase)
        counts = run.ledger.rollbacks.go_back(MODULAR, phase, _due_at(run, phase), token)
        if counts is not None:
            return counts


def undo_steps(run: Run, path: int, step: int) -> None:
    """Puts a path that a swarm trains back to a step of its phase.

    Raises:
      CannotUndo: there is no snapshot of that step.
      WorkersActive: a backbone runs, or a worker holds a lease.
    """
    arm, facts = run.plan.arm(MODULAR), run.ledger.facts
    phase = run.phases_reached
    saved, there = facts.partial_snapshots(MODULAR, path, max(phase, 0)), list[int]()
    if 0 <= phase < arm.phases and path not in facts.trained(MODULAR, phase):
        there = [arm.steps_before(phase), *(one.step for one in reversed(saved))]
    if step not in there:
        raise CannotUndo(path=path, step=step, there=", ".join(map(str, there)) or "none")
    if leading := list(run.ledger.swarms.backbones(MODULAR, path)):
        who = f"{', '.join(leading)} leads or follows its volunteers"
        raise WorkersActive(what="Going back", who=who)
    run.ledger.rollbacks.undo(MODULAR, path, phase, step)
    gone = {one.receipt.name for one in saved if one.step > step}
    delete(run, lambda: gone, run.objects.delete)


def wait_for_silent_workers(ledger: Ledger, say: Callable[[str], None]) -> None:
    """Ends the claims of workers that are gone, for which it has to look as long as their leases.
    Returns at once if none holds a claim or deletes objects, and as soon as one that does is seen
    to be alive.
    """
    before: dict[Hashable, int] = {}
    began = time.monotonic()
    while True:
        ledger.reaper.reap()
        held, deleting = ledger.queue.held(), ledger.rollbacks.deleting_workers()
        beats: dict[Hashable, int] = {(claim.task, claim.attempt): claim.renewals for claim in held}
        beats |= {
            each.name: each.heartbeats for each in ledger.members.list() if each.name in deleting
        }
        is_alive = any(count > before.get(key, count) for key, count in beats.items())
        leases = [claim.lease_seconds for claim in held] + [LEASE_SECONDS] * bool(deleting)
        longest = max(leases, default=0.0)
        if not beats or is_alive or time.monotonic() - began > 2 * longest:
            return
        if not before:
            names = listed(sorted({claim.worker for claim in held}.union(deleting)), 3)
            say(f"{names} may be at work; waiting to see whether that is so ({longest:.0f} s)")
        before = beats
        time.sleep(POLL_SECONDS)


def _due_at(run: Run, phase: int) -> list[Task]:
    """Tasks that the facts of that phase make due. Tasks already done stay done."""
    facts: list[Fact] = []
    for module in run.config.topology.modules:
        stored = run.ledger.facts.module(MODULAR, module, phase)
        facts.append(
            ModuleReady(
                arm=MODULAR,
                module=module,
                phase=phase,
                parameters=stored.parameters,
                outer_state=stored.outer_state,
                gradient_norm=None,
            )
        )
    if phase in run.plan.arm(MODULAR).alternations:
        facts.append(run.ledger.facts.stage("route", phase))
    return due(run.plan, facts, run.ledger.facts)


def _check_phase(run: Run, phase: int) -> None:
    reached = run.phases_reached
    if not 0 <= phase <= reached:
        there = "not routed yet" if reached < 0 else f"at phase {reached}"
        raise CannotRollBack(phase=phase, problem=f"it is {there}.")
    if phase == reached and not _has_gone_on(run, phase):
        raise CannotRollBack(phase=phase, problem="it is there, and has recorded nothing since.")


def _has_gone_on(run: Run, phase: int) -> bool:
    newest = run.ledger.progress.newest_phases()
    trained = (each.phase for each in newest if each.arm == MODULAR)
    return max(trained, default=-1) >= phase


def _check_bytes(run: Run, phase: int) -> None:
    """Checks the bytes that training would go on from, on whatever machine."""
    ledger, objects, keep = run.ledger, run.objects, run.config.retention
    what, setting, most = "", "modules", keep.modules

    def check(receipt: Receipt) -> None:
        objects.need_shared(receipt.name)
        objects.file(receipt)

    try:
        for module in run.config.topology.modules:
            what = f"module {module} at phase {phase}"
            check(ledger.facts.module(MODULAR, module, phase).parameters)
        setting, most = "snapshots", keep.snapshots
        for path in range(run.config.num_paths):
            before = _last_trained(run, path, phase)
            if before is not None:
                what = f"the snapshot of path {path} after phase {before}"
                name = ledger.facts.snapshot(MODULAR, path, before).receipt.name
                if is_sent(run.plan.arm(MODULAR), path, before, keep.send_snapshots_every):
                    objects.need_shared(name)
                objects.folder(name)
        for module in run.config.topology.modules:
            what = f"the outer state of {module} at phase {phase}"
            state = ledger.facts.module(MODULAR, module, phase).outer_state
            if state is not None:
                check(state)
        setting, most = "contributions", keep.contributions
        for contribution in _late_for(run, phase):
            what = (
                f"the late contribution of path {contribution.path} to module {contribution.module}"
            )
            check(contribution.message)
    except ObjectMissing as error:
        deleted = "" if most is None else _deleted_by(run, f"retention.{setting}", most)
        raise CannotRollBack(phase=phase, problem=f"{what} {deleted}is lost.") from error
    except ObjectDamaged as error:
        problem = f"{what} is damaged: {error.values['problem']}."
        raise CannotRollBack(phase=phase, problem=problem) from error


def _deleted_by(run: Run, setting: str, most: int) -> str:
    is_fewer = setting == "retention.snapshots" and run.ledger.queue.is_finished()
    fewer = ", and one fewer once the run is finished" if is_fewer else ""
    return f"was deleted (`{setting}` is {most}{fewer}), or "


def _last_trained(run: Run, path: int, phase: int) -> int | None:
    """The phase that a path goes on from: the last before `phase`, or the one before that if the
    path was late (a quorum).
    """
    arm = run.plan.arm(MODULAR)
    before = arm.trained_before(path, phase)
    if before is None or path in run.ledger.facts.trained(MODULAR, before):
        return before
    return arm.trained_before(path, before)


def _late_for(run: Run, phase: int) -> list[Contribution]:
    """Late contributions of the phase before, which wait for the steps of `phase` again."""
    arm = run.plan.arm(MODULAR)
    if not arm.has_quorum or phase == 0:
        return []
    in_time = {
        (module, taken.path)
        for (module, step), all_taken in run.ledger.quorums.taken(MODULAR).items()
        if step == phase - 1
        for taken in all_taken
        if not taken.is_late
    }
    return [
        contribution
        for module in run.config.topology.modules
        for contribution in run.ledger.facts.contributions(MODULAR, module, phase - 1)
        if (module, contribution.path) not in in_time
    ]
