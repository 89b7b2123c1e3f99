"""`train` of a synchronous arm: all paths through one phase, in one task.

Gradients are averaged per module at every step (`inner.synchronous`), so there are no contributions
and no outer steps, and one worker does the task. It saves at the end of each phase. Each path is
recorded with the bytes it would exchange if it had a machine to itself: at every step a gradient up
and the mean down. DiPaCo section 4.5.
"""

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from dipaco import trees
from dipaco.control.facts.facts import PartialSnapshot
from dipaco.control.planning.tasks import Claim, Fact, GradientNorms, PathTrained
from dipaco.data.pipeline import Batches
from dipaco.errors import Diverged
from dipaco.inner.optimizer import learning_rates
from dipaco.inner.step import StepMetrics
from dipaco.inner.synchronous import synchronous_steps
from dipaco.outer.gradient import path_weights
from dipaco.runs.machine import machine
from dipaco.runs.run import Run
from dipaco.schedule.arm import Arm
from dipaco.store.snapshots import load_snapshot, save_snapshot
from dipaco.topology import ModuleId
from dipaco.workers.callbacks import OnPathStep
from dipaco.workers.errors import Preempted, SnapshotOfOtherData
from dipaco.workers.phase_end import module_as_trained
from dipaco.workers.row_plans import batches_for

Modules = dict[ModuleId, Any]


class SynchronousStart(NamedTuple):
    """The beginning of the phase, or the step at which another worker was stopped inside it."""

    modules: Modules
    states: Modules
    taken: int  # inner steps, over all phases
    losses: list[list[float]]  # [steps of this phase that are taken already][paths]
    norms: list[list[float]]  # gradient norms of those steps
    seconds: float


def train_synchronous(
    run: Run, claim: Claim, on_step: OnPathStep, should_stop: Callable[[], bool] = lambda: False
) -> list[Fact]:
    """Trains all paths of the arm through one phase, and saves their modules.

    Raises:
      Preempted: `should_stop` returned True.
      Diverged: the loss of a path is not finite.
    """
    started = time.monotonic()
    arm, phase = run.plan.arm(claim.task.arm), claim.task.phase
    paths, inner = range(arm.topology.num_paths), run.config.inner
    batches = [batches_for(run, arm, path, phase) for path in paths]
    start = _begin(run, arm, phase, batches)
    end = arm.steps_before(phase + 1)
    rates = learning_rates(inner, arm.total_steps, start.taken, end - start.taken)
    losses, tokens = list(start.losses), inner.batch_size * run.config.data.length
    norms = list(start.norms)
    metrics: list[StepMetrics] = []  # of the current step, in path order

    def gradient_of(path: int, step: int, parts: Any) -> Any:
        batch = run.programs.place_batch(batches[path].at(step))
        gradient, of_path = run.programs.gradient(parts, batch)
        metrics.append(of_path)
        return gradient

    def update(step: int, *arguments: Any) -> Any:
        return run.programs.update(*arguments, rates[step - start.taken])

    def fetch(waiting: list[StepMetrics]) -> None:
        fetched = jax.device_get(waiting)
        losses.append([float(each.loss) for each in fetched])
        norms.append([float(each.gradient_norm) for each in fetched])
        for loss in losses[-1]:
            if not np.isfinite(loss):
                raise Diverged(step=len(losses), loss=loss)
            on_step(loss, tokens)

    placed = {m: run.programs.place_module(start.modules[m], start.states[m]) for m in start.states}
    reached = {m: parts for m, (parts, _) in placed.items()}, {m: s for m, (_, s) in placed.items()}
    waiting: list[StepMetrics] = []
    for stepped in synchronous_steps(
        arm.topology,
        *reached,
        gradient_of,
        update,
        _weights(run, arm, phase),
        steps=itertools.takewhile(lambda _: not should_stop(), range(start.taken, end)),
        clip_norm=inner.clip_norm,
    ):
        reached = stepped
        # Fetched one step late, so that the device never waits for the host.
        if waiting:
            fetch(waiting)
        waiting, metrics = metrics, []
    if waiting:
        fetch(waiting)
    seconds = start.seconds + time.monotonic() - started
    taken = arm.steps_before(phase) + len(losses)
    if taken < end:
        raise Preempted(_save_partial_snapshot(run, claim, *reached, taken, losses, norms, seconds))
    return _finish(run, claim, batches, *reached, losses, norms, seconds)


def _weights(run: Run, arm: Arm, phase: int) -> dict[ModuleId, dict[int, Any]]:
    """Module -> path -> alpha_i, float32, as in an outer step. Equal if paths have no shards."""
    documents = [1] * arm.topology.num_paths
    if arm.is_routed:
        documents = run.shards_of(run.routing_of(arm.name, phase)).documents
    weights = {}
    for module in arm.topology.modules:
        paths = arm.topology.paths_through(module)
        alphas = path_weights(
            [documents[path] for path in paths], by_documents=run.config.outer.weigh_by_documents
        )
        weights[module] = dict(zip(paths, alphas.astype(np.float32), strict=True))
    return weights


def _begin(run: Run, arm: Arm, phase: int, batches: Sequence[Batches]) -> SynchronousStart:
    modules = {module: run.parameters(arm.name, module, phase) for module in arm.topology.modules}
    like = {str(module): run.programs.module_state_like(modules[module]) for module in modules}
    partial_snapshot = run.ledger.facts.partial_snapshot(arm.name, 0, phase)
    if partial_snapshot is not None:
        if partial_snapshot.batches != _fingerprint(batches):
            raise SnapshotOfOtherData(path=0, arm=arm.name)
        saved = load_snapshot(
            run.objects, partial_snapshot.receipt, ({str(m): modules[m] for m in modules}, like)
        )
        parts, states = ({module: of[str(module)] for module in modules} for of in saved)
        losses, norms = (
            np.reshape(of, (-1, arm.topology.num_paths)).tolist()
            for of in (partial_snapshot.losses, partial_snapshot.norms)
        )
        return SynchronousStart(
            parts, states, partial_snapshot.step, losses, norms, partial_snapshot.seconds
        )
    states = dict.fromkeys(modules)
    if phase > 0:
        for path, of_path in enumerate(batches):
            snapshot = run.ledger.facts.snapshot(arm.name, path, phase - 1)
            if snapshot.batches != of_path.fingerprint:
                raise SnapshotOfOtherData(path=path, arm=arm.name)
        saved = load_snapshot(run.objects, snapshot.receipt, like)
        states = {module: saved[str(module)] for module in modules}
    return SynchronousStart(modules, states, arm.steps_before(phase), [], [], 0.0)


def _save_partial_snapshot(
    run: Run,
    claim: Claim,
    modules: Modules,
    states: Modules,
    taken: int,
    losses: list[list[float]],
    norms: list[list[float]],
    seconds: float,
) -> PartialSnapshot:
    arm = run.plan.arm(claim.task.arm)
    phase = claim.task.phase
    batches = [batches_for(run, arm, path, phase) for path in range(arm.topology.num_paths)]
    return PartialSnapshot(
        receipt=save_snapshot(
            run.objects, _snapshot_name(run, claim), (_by_name(modules), _by_name(states))
        ),
        step=taken,
        batches=_fingerprint(batches),
        losses=tuple(loss for of_step in losses for loss in of_step),
        seconds=seconds,
        norms=tuple(norm for of_step in norms for norm in of_step),
    )


def _finish(
    run: Run,
    claim: Claim,
    batches: Sequence[Batches],
    modules: Modules,
    states: Modules,
    losses: list[list[float]],
    norms: list[list[float]],
    seconds: float,
) -> list[Fact]:
    """Saves the modules and their AdamW states, and returns the facts about them."""
    arm, phase = run.plan.arm(claim.task.arm), claim.task.phase
    topology, steps = arm.topology, len(losses)
    after = jax.device_get(modules)
    snapshot = save_snapshot(run.objects, _snapshot_name(run, claim), _by_name(states))
    path_bytes = sum(trees.num_bytes(after[module]) for module in topology.modules_of(0))
    ready = [module_as_trained(run, claim, module, after[module]) for module in topology.modules]
    trained = [
        PathTrained(
            arm=arm.name,
            path=path,
            phase=phase,
            snapshot=snapshot,
            step=arm.steps_before(phase + 1),
            position=arm.steps_before(phase + 1),
            batches=of_path.fingerprint,
            losses=tuple(of_step[path] for of_step in losses),
            norms=GradientNorms.over([of_step[path] for of_step in norms]),
            tokens=steps * run.config.inner.batch_size * run.config.data.length,
            seconds=seconds / topology.num_paths,
            bytes_down=steps * path_bytes,
            bytes_up=steps * path_bytes,
            machine=machine(),
        )
        for path, of_path in enumerate(batches)
    ]
    return [*trained, *ready]


def _snapshot_name(run: Run, claim: Claim) -> str:
    task, attempt = claim.task, claim.attempt
    return run.layout.snapshot(task.arm, task.path, task.phase, attempt)


def _by_name(modules: Modules) -> dict[str, Any]:
    return {str(module): tree for module, tree in modules.items()}


def _fingerprint(batches: Sequence[Batches]) -> str:
    return " ".join(of_path.fingerprint for of_path in batches)
