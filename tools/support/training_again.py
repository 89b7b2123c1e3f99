"""A finished run's training once more, in this process: what it began with, and a path's steps."""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

from dipaco.algorithm import variants
from dipaco.config import MODULAR
from dipaco.inner.state import PathState
from dipaco.inner.step import Batch
from dipaco.runs.run import Run


def first_modules(run: Run) -> variants.Modules:
    """What a run began its first phase with."""
    topology = run.plan.arm(MODULAR).topology
    if run.given("modules") is not None:  # a run that began from the modules of another
        return {module: run.parameters(MODULAR, module, 0) for module in topology.modules}
    base = run.base_parts()
    return {m: {part: base[part] for part in topology.parts_of(m)} for m in topology.modules}


def take_steps(
    run: Run,
    state: PathState,
    rates: np.ndarray,
    batches: Iterable[Batch],
    after_step: Callable[[PathState, Any], PathState] = lambda state, rate: state,
) -> tuple[Any, Any]:
    """Parameters and the optimiser's state after as many inner steps as there are rates.

    Args:
      run: whose programs take them.
      state: placed; its memory is reused.
      rates: [steps] learning rates.
      batches: one for each.
      after_step: (state, rate) -> state, what else is done to a path at every step.
    """
    for rate, batch in zip(rates, batches, strict=False):
        state, _ = run.programs.step(state, run.programs.place_batch(batch), rate)
        state = after_step(state, rate)
    return jax.device_get((state.parts, state.optimizer))
