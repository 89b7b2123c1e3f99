"""Late modules: a path that has gone ahead (`outer.delay`) waits for its modules, and takes them.

It waits at the step at which it is to be merged with them, or leaves.

A worker that waits keeps the path in memory, and its lease goes on. It leaves as soon as there is
something else to do: a path whose modules wait for paths that no worker has would otherwise wait
for ever. Then the path is a partial snapshot, and its task waits in the ledger for the modules
(`Commit.release_with_snapshot`).
"""

import random
import time
from collections.abc import Callable

import jax

from dipaco.control.planning.tasks import Claim
from dipaco.inner.phase import PhaseResult
from dipaco.inner.state import Handover, PathState
from dipaco.outer.delay import merge
from dipaco.runs.run import Run
from dipaco.topology import ModuleId, assemble
from dipaco.workers.phase_start import PhaseStart, modules_before, receipts_of

# Seconds between two looks: a fifth of the time that it has waited, within these bounds.
MIN_WAIT_SECONDS, MAX_WAIT_SECONDS, WAIT_GROWTH = 0.02, 5.0, 1.25


def modules_needed(run: Run, claim: Claim, step: int) -> tuple[ModuleId, ...]:
    """The modules that a path which stopped after `step` needs for its next one, or none."""
    task = claim.task
    if task.kind != "train":
        return ()
    arm = run.plan.arm(task.arm)
    if arm.merges_at(task.path, task.phase) != step:
        return ()
    return arm.topology.modules_of(task.path)


def wait_for_modules(run: Run, claim: Claim, should_leave: Callable[[], bool]) -> bool:
    """Waits until all modules that the path takes are there. False if it was to leave before.

    Args:
      should_leave: called between two looks. True ends the waiting.

    Raises:
      ClaimLost: `should_leave` raised it.
    """
    task, wait_seconds = claim.task, MIN_WAIT_SECONDS
    needed = run.plan.arm(task.arm).topology.modules_of(task.path)
    while not run.ledger.facts.modules_at(task.arm, task.phase).issuperset(needed):
        if should_leave():
            return False
        time.sleep(wait_seconds * random.uniform(0.5, 1.0))
        wait_seconds = min(WAIT_GROWTH * wait_seconds, MAX_WAIT_SECONDS)
    return True


def merged(run: Run, start: PhaseStart, ahead: PhaseResult) -> PhaseStart:
    """The path after the merge, with the rest of its phase before it.

    Args:
      ahead: the path at the step of the merge. Its arrays are given up.
    """
    assert start.merges_at is not None
    task = start.claim.task
    modules = modules_before(run, start.arm, task.path, task.phase)
    stepped = assemble(modules, start.arm.topology.modules_of(task.path))
    parts = merge(jax.device_get(ahead.state.parts), stepped, run.config.outer.delay_merge)
    optimizer = jax.device_get(ahead.state.optimizer)
    return start._replace(
        modules=modules,
        receipts=receipts_of(run, start.arm, modules, task.phase),
        state=Handover(PathState(parts, optimizer, start.merges_at)),
        losses=tuple(ahead.losses.tolist()),
        norms=ahead.norms,
        merges_at=None,
    )
