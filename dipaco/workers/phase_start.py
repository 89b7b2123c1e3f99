"""The start of a path's phase: modules, batches, optimizer state, residual.

A phase begins at its first step, or at the step where another worker was stopped and saved a
partial snapshot. DiPaCo Algorithm 1, lines 3-4. A path that goes ahead (`Arm.goes_ahead`) begins
with its own parameters and without modules, which come later (`late_modules.py`).
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from dipaco.control.facts.facts import PartialSnapshot, Snapshot
from dipaco.control.planning.tasks import Claim
from dipaco.data.pipeline import Batches
from dipaco.inner.state import Handover, PathState
from dipaco.outer.compress import codec_of
from dipaco.receipt import Receipt
from dipaco.runs.run import Run
from dipaco.schedule.arm import Arm
from dipaco.store.snapshots import load_snapshot
from dipaco.store.tensors import load_tree
from dipaco.topology import ModuleId, assemble
from dipaco.workers.errors import SnapshotOfOtherData
from dipaco.workers.fetching import bring_modules
from dipaco.workers.row_plans import batches_for


class PhaseStart(NamedTuple):
    """A path at the first step that is to be taken of its phase."""

    claim: Claim
    arm: Arm
    modules: dict[ModuleId, Any]  # modules at the start of the phase, none before `merges_at`
    receipts: dict[ModuleId, Receipt]  # the modules' objects, none in an arm without outer steps
    batches: Batches
    position: int  # batches that the path had taken of this data at the start of the phase
    # Not placed yet. Its optimizer may be None, a fresh one. Its step counts in the arm's schedule.
    state: Handover
    residual: Mapping[str, Any] | None  # part name -> what messages could not hold yet
    losses: tuple[float, ...]  # one for each step of this phase that is taken already
    norms: tuple[float, ...]  # gradient norms of those steps for which there is one
    seconds: float  # the time of those steps
    merges_at: int | None = None  # the step after which it takes its modules, None: it has them

    @property
    def steps(self) -> tuple[int, int]:
        """The path's first step of the phase in the arm's schedule, and the one after its last."""
        phase = self.claim.task.phase
        return self.arm.steps_before(phase), self.arm.steps_before(phase + 1)

    @property
    def next_step(self) -> int:
        """The step that is to be taken, in the arm's schedule."""
        return self.steps[0] + len(self.losses)

    @property
    def taken(self) -> int:
        """Batches that the path has taken of this data."""
        return self.position + len(self.losses)


def phase_start(run: Run, claim: Claim) -> PhaseStart:
    """Loads what the claimed phase begins from.

    Raises:
      SnapshotOfOtherData: the path's snapshot counts in data that the run no longer has.
    """
    task = claim.task
    arm, path, phase = run.plan.arm(task.arm), task.path, task.phase
    batches = batches_for(run, arm, path, phase)
    before = _snapshot_before(run, arm, path, phase, batches)
    position = 0
    if before is not None and before.batches == batches.fingerprint:
        position = before.position
    saved = run.ledger.facts.partial_snapshot(arm.name, path, phase)
    merges_at = arm.merges_at(path, phase)
    if merges_at is not None and saved is not None and saved.step > merges_at:
        merges_at = None
    modules = {} if merges_at is not None else modules_before(run, arm, path, phase)
    receipts = receipts_of(run, arm, modules, phase)
    if saved is None:
        optimizer, residual, own = _carried_state(run, arm, before)
        parts = own
        if merges_at is None:
            parts = assemble(modules, arm.topology.modules_of(path))
        state = PathState(parts, optimizer, arm.steps_before(phase))
        losses, norms, seconds = (), (), 0.0
    else:
        state = _load_partial_snapshot(run, arm, path, saved, batches)
        # The residual changes between phases only, so the phase before has it still.
        residual = _carried_state(run, arm, before).residual if has_residual(run, arm) else None
        losses, norms, seconds = saved.losses, saved.norms, saved.seconds
    return PhaseStart(
        claim=claim,
        arm=arm,
        modules=modules,
        receipts=receipts,
        batches=batches,
        position=position,
        state=Handover(state),
        residual=residual,
        losses=losses,
        norms=norms,
        seconds=seconds,
        merges_at=merges_at,
    )


def has_residual(run: Run, arm: Arm) -> bool:
    """True if the paths of an arm carry a residual: what the codec's messages could not hold."""
    return arm.has_outer_steps and codec_of(run.config.outer).is_lossy


def _load_partial_snapshot(
    run: Run, arm: Arm, path: int, saved: PartialSnapshot, batches: Batches
) -> PathState:
    if saved.batches != batches.fingerprint:
        raise SnapshotOfOtherData(path=path, arm=arm.name)
    state = load_snapshot(run.objects, saved.receipt, run.programs.state_like)
    return PathState(state.parts, state.optimizer, saved.step)


def modules_before(run: Run, arm: Arm, path: int, phase: int) -> dict[ModuleId, Any]:
    """The path's modules at the start of the phase. The base model's first have no fact."""
    if arm.name == run.plan.base.name and phase == 0:
        (module,) = arm.topology.modules
        return {module: first_base_parts(run)}
    modules = arm.topology.modules_of(path)
    bring_modules(run, arm.name, modules, phase)
    return {module: run.parameters(arm.name, module, phase) for module in modules}


def receipts_of(
    run: Run, arm: Arm, modules: Iterable[ModuleId], phase: int
) -> dict[ModuleId, Receipt]:
    """Receipts of modules at the start of a phase. A contribution records the digest of its own."""
    if not arm.has_outer_steps:
        return {}
    return {m: run.ledger.facts.module(arm.name, m, phase).parameters for m in modules}


def first_base_parts(run: Run) -> dict[str, Any]:
    """The base model before it is trained: initialised, or the one that the run was given."""
    given = run.given("base")
    if given is None:
        return run.programs.initial_parts()
    return load_tree(run.objects, Receipt(*given))


class Carried(NamedTuple):
    """State that a path carries from phase to phase. It is the path's own, and is never reset."""

    optimizer: Any | None = None  # the optimiser's state, None: a fresh one
    residual: Any | None = None  # the part that earlier messages could not hold
    own: Any | None = None  # its parameters after the phase before, if it may go ahead

    @property
    def as_saved(self) -> Any:
        """The tree of the path's snapshot."""
        others = {"residual": self.residual, "own": self.own}
        others = {name: tree for name, tree in others.items() if tree is not None}
        return {"optimizer": self.optimizer, **others} if others else self.optimizer


def _carried_state(run: Run, arm: Arm, before: Snapshot | None) -> Carried:
    """Loads the state that the path carries from the last phase it took part in."""
    if before is None:
        return Carried()
    like, residual = run.programs.state_like, None
    if has_residual(run, arm):
        residual = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, np.float32), like.parts
        )
    template = Carried(like.optimizer, residual, like.parts if arm.delay else None).as_saved
    saved = load_snapshot(run.objects, before.receipt, template)
    # The snapshot is the optimiser's state itself if nothing else is carried.
    return Carried(saved) if template is like.optimizer else Carried(**saved)


def _snapshot_before(
    run: Run, arm: Arm, path: int, phase: int, batches: Batches
) -> Snapshot | None:
    """The path after the last phase that it took part in. None at its first.

    Raises:
      SnapshotOfOtherData: it counts in other data, and no alternation lies between.
    """
    before = arm.trained_before(path, phase)
    if before is None:
        return None
    snapshot = run.ledger.facts.snapshot(arm.name, path, before)
    is_rerouted = arm.routed_at(before) != arm.routed_at(phase)
    if snapshot.batches != batches.fingerprint and not is_rerouted:
        raise SnapshotOfOtherData(path=path, arm=arm.name)
    return snapshot
