"""A swarm's steps, by the ledger, beside one machine that is never disturbed."""

from collections import Counter
from typing import Any, NamedTuple

import jax
import numpy as np

from dipaco.config import MODULAR
from dipaco.runs.run import Run
from dipaco.store.tensors import load_tree
from dipaco.topology import assemble
from dipaco.workers.replay import path_steps


class Replayed(NamedTuple):
    """A path, by the swarm and by one machine."""

    largest_difference: float  # over all parameters at the end of all phases
    swarm_losses: list[float]
    losses: list[float]

    @property
    def loss_difference(self) -> float:
        return float(np.max(np.abs(np.array(self.swarm_losses) - np.array(self.losses))))


def replay(run: Run, path: int = 0) -> Replayed:
    """The path's steps in this process, without volunteers."""
    arm, largest, losses = run.plan.arm(MODULAR), 0.0, []
    swarm_losses = run.ledger.progress.losses(MODULAR)[path]
    ends = {arm.steps_before(phase + 1): phase for phase in range(arm.phases)}
    for one in path_steps(run, path):
        end = int(one.state.step)
        losses += [one.loss] * (end - one.step)
        if (phase := ends.get(end)) is not None:
            after = _parts_after(run, path, phase)
            ours = jax.device_get(one.state.parts)
            pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(after), strict=True)
            largest = max(largest, *(float(np.max(np.abs(a - b))) for a, b in pairs))
    return Replayed(largest, swarm_losses, losses)


def _parts_after(run: Run, path: int, phase: int) -> dict[str, Any]:
    """A path's parts after a phase of the swarm. For a module that several paths train, this is its
    state at the phase's beginning less this path's contribution.
    """
    arm = run.plan.arm(MODULAR)
    if not arm.has_outer_steps:
        return run.parts_at(MODULAR, path, phase + 1)
    modules = arm.topology.modules_of(path)
    contributed = {
        module: load_tree(run.objects, one.message)
        for module in modules
        for one in run.ledger.facts.contributions(MODULAR, module, phase)
        if one.path == path
    }
    before = run.parts_at(MODULAR, path, phase)
    return jax.tree.map(np.subtract, before, assemble(contributed, modules))


def rows_lost_and_twice(
    run: Run, block_rows: int, by_worker: int = 0, path: int = 0
) -> tuple[int, int, int]:
    """(steps of the swarm, rows lost, rows twice) of a path, by the ledger's record of the peer of
    each block. A step that the swarm did not take is lost, unless it is one of `by_worker` that
    plain workers took.
    """
    arm, batch = run.plan.arm(MODULAR), run.config.inner.batch_size
    num_blocks = -(-batch // block_rows)
    steps = {one.step: one for one in run.ledger.swarms.steps(MODULAR, path)}
    num_steps = sum(one.steps for one in steps.values())
    lost, twice = batch * max(0, arm.total_steps - num_steps - by_worker), 0
    for step in steps.values():
        counted: Counter[int] = Counter()
        for blocks in step.blocks.values():
            counted.update(blocks)
        rows = block_rows * step.steps
        lost += sum(rows for block in range(num_blocks) if not counted[block])
        twice += sum(rows * (times - 1) for times in counted.values() if times > 1)
    return num_steps, lost, twice
