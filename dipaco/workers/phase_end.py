"""The end of a path's phase: its snapshot, and its contributions to its modules.

A contribution is an encoded outer gradient. What the message cannot hold is the residual, which the
path carries to its next contribution. In an arm without outer steps the path saves its modules
instead. A path that is stopped before the end leaves a partial snapshot. DiPaCo Algorithm 1, lines
12-14: the outer gradient of one path.
"""

from collections.abc import Sequence
from typing import Any

import jax

from dipaco.control.facts.facts import PartialSnapshot
from dipaco.control.planning.tasks import (
    Claim,
    Contribution,
    Fact,
    GradientNorms,
    ModuleReady,
    PathTrained,
)
from dipaco.inner.state import Handover, PathState
from dipaco.outer.compress import codec_of, encode_rows
from dipaco.outer.gradient import outer_gradient
from dipaco.outer.vocabulary import sent_rows
from dipaco.runs.machine import machine
from dipaco.runs.run import Run
from dipaco.runs.sent_snapshots import sends_snapshot
from dipaco.store.snapshots import save_snapshot
from dipaco.store.tensors import save_tree
from dipaco.topology import ModuleId, dissect
from dipaco.workers.fetching import bytes_down
from dipaco.workers.phase_start import Carried, PhaseStart, has_residual


def end_phase(
    run: Run,
    start: PhaseStart,
    handover: Handover,
    losses: Sequence[float],
    norms: GradientNorms | None,
    seconds: float,
    *,
    is_sent: bool,
) -> list[Fact]:
    """Saves the path's snapshot and contributions, and returns the facts about them.

    Args:
      start: its `modules` are emptied, to free memory for the snapshot.
      is_sent: the snapshot goes to the bucket, whatever the phase.
    """
    arm, modules = start.arm, start.modules
    path, phase = start.claim.task.path, start.claim.task.phase
    first, end = start.steps
    state = handover.take()
    after = dissect(jax.device_get(state.parts), arm.topology, path)
    carried = Carried(state.optimizer, own=state.parts if arm.delay else None)
    del state
    made: list[Fact]
    fetched_bytes = 0  # a dense arm exchanges nothing
    if arm.has_outer_steps:
        fetched_bytes = bytes_down(run, arm, path, phase)
        made, residual = _contribute(run, start, after)
        if has_residual(run, arm):
            carried = carried._replace(residual=residual)
    else:
        made = [
            module_as_trained(run, start.claim, module, after.pop(module)) for module in modules
        ]
        modules.clear()
    name = run.layout.snapshot(arm.name, path, phase, start.claim.attempt)
    is_sent = is_sent or sends_snapshot(run, arm, path, phase)
    trained = PathTrained(
        arm=arm.name,
        path=path,
        phase=phase,
        snapshot=save_snapshot(run.objects, name, carried.as_saved, is_sent=is_sent),
        step=arm.steps_before(phase + 1),
        position=start.position + end - first,
        batches=start.batches.fingerprint,
        losses=tuple(losses),
        norms=norms,
        tokens=(end - first) * run.config.inner.batch_size * run.config.data.length,
        seconds=seconds,
        bytes_down=fetched_bytes,
        bytes_up=sum(fact.message.num_bytes for fact in made if isinstance(fact, Contribution)),
        machine=machine(),
    )
    return [trained, *made]


def partial_snapshot_of(
    run: Run,
    start: PhaseStart,
    state: PathState,
    losses: Sequence[float],
    seconds: float,
    norms: tuple[float, ...] = (),
) -> PartialSnapshot:
    """Saves a path within its phase, after as many steps of it as there are losses."""
    task, step = start.claim.task, start.steps[0] + len(losses)
    name = run.layout.snapshot(start.arm.name, task.path, task.phase, start.claim.attempt, step)
    return PartialSnapshot(
        receipt=save_snapshot(run.objects, name, state),
        step=step,
        batches=start.batches.fingerprint,
        losses=tuple(losses),
        seconds=seconds,
        norms=norms,
    )


def module_as_trained(run: Run, claim: Claim, module: ModuleId, parameters: Any) -> ModuleReady:
    """The next phase's module of an arm without outer steps: the parameters as trained."""
    return ModuleReady(
        arm=claim.task.arm,
        module=module,
        phase=claim.task.phase + 1,
        parameters=save_tree(run.objects, "modules", parameters),
    )


def _contribute(
    run: Run, start: PhaseStart, after: dict[ModuleId, Any]
) -> tuple[list[Fact], dict[str, Any]]:
    """Encodes and saves what a path contributes at the end of a phase.

    Args:
      after: module -> part -> parameters, as trained. Emptied, and so is `start.modules`.

    Returns:
      The path's contribution to each of its modules, and the residual of every part.
    """
    arm, path, phase = start.arm, start.claim.task.path, start.claim.task.phase
    contributions: list[Fact] = []
    residual: dict[str, Any] = {}
    codec = codec_of(run.config.outer)
    for module in list(start.modules):
        before = start.modules.pop(module)
        residual_before = None
        if start.residual is not None:
            residual_before = {part: start.residual[part] for part in before}
        counts = run.counts_through(arm.name, module, phase)
        sent_V = None
        if counts is not None:
            sent_V = sent_rows(counts, arm.contributors(module, phase).index(path))
        gradient = outer_gradient(before, after.pop(module))
        encoded = encode_rows(codec, gradient, residual_before, sent_V)
        residual |= encoded.residual or {}
        # One folder per module and phase, which is deleted with the last message in it.
        kind = f"messages/{arm.name}/{module}/{phase:06d}"
        contribution = Contribution(
            arm=arm.name,
            path=path,
            module=module,
            phase=phase,
            base_digest=start.receipts[module].digest,
            message=save_tree(run.objects, kind, encoded.message),
        )
        contributions.append(contribution)
    return contributions, residual
