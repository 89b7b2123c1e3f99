"""A phase of one path: tau inner steps (DiPaCo Algorithm 1, lines 5-10).

Step k+1 is dispatched before the metrics of step k are fetched, so the device never waits for the
host. A diverged loss is noticed one step late.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import jax
import numpy as np

from dipaco.errors import Diverged
from dipaco.inner.state import PathState
from dipaco.inner.step import Batch, StepMetrics

OnStep = Callable[[int, float], None]  # (steps taken in this phase, loss)


class PhaseResult(NamedTuple):
    """A path after some steps of a phase. `run_phase` tells of these steps, a `PhaseRunner` of all
    steps of the phase so far.
    """

    state: PathState
    losses: np.ndarray  # float32 [steps], mean nats per target
    targets: int  # predicted tokens
    norms: tuple[float, ...] = ()  # gradient norms before clipping; volunteers tell none


def run_phase(
    state: PathState,
    batches: Iterable[Batch],
    rates: np.ndarray,
    step: Callable[[PathState, Batch, np.float32], tuple[PathState, StepMetrics]],
    *,
    taken: int = 0,
    on_step: OnStep | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> PhaseResult:
    """Runs one step per learning rate, or fewer if `should_stop` returns true.

    Args:
      state: donated: use the returned state.
      batches: at least as many as there are rates, placed as `step` expects them.
      rates: float32 [tau], the learning rate of each step.
      step: a compiled step, from `make_step`.
      taken: steps of this phase that were taken before, when it resumes after a stop.
      on_step: called with (steps taken, loss), one step late.
      should_stop: called before each step. True ends the phase there, and the rest can be run later
        from the returned state.

    Raises:
      Diverged: a loss is not finite. Discard the whole phase.
    """
    losses: list[float] = []
    norms: list[float] = []
    targets = 0
    waiting: StepMetrics | None = None

    def fetch(metrics: StepMetrics) -> None:
        nonlocal targets
        loss, norm, count = jax.device_get(metrics)
        if not np.isfinite(loss):
            raise Diverged(step=taken + len(losses) + 1, loss=float(loss))
        losses.append(loss.tolist())
        norms.append(norm.tolist())
        targets += int(count)
        if on_step is not None:
            on_step(taken + len(losses), losses[-1])

    is_stopped = False
    for rate, batch in zip(rates, batches, strict=False):
        if should_stop is not None and should_stop():
            is_stopped = True
            break
        state, metrics = step(state, batch, rate)
        if waiting is not None:
            fetch(waiting)
        waiting = metrics
    if waiting is not None:
        fetch(waiting)
    assert is_stopped or len(losses) == len(rates), "the batches ran out before the learning rates"
    return PhaseResult(state, np.asarray(losses, np.float32), targets, tuple(norms))
