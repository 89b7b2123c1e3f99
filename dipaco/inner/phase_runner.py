"""The contract of whoever takes the steps of a phase: this process, several hosts, volunteers."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from dipaco.inner.phase import OnStep, PhaseResult
from dipaco.inner.state import Handover, PathState
from dipaco.inner.step import Batch


class PhaseWork(NamedTuple):
    """Steps of one path in one phase, as input of a `PhaseRunner`."""

    origin: str  # names the phase and its first modules: equal origins are the same work
    state: Handover  # NumPy arrays: at the start of the phase, or of a partial snapshot
    first_step: int  # next inner step, of the arm's schedule
    losses: tuple[float, ...]  # losses of the steps of this phase that are already in `state`
    rates: np.ndarray  # float32 [steps left], the learning rate of each
    batches: Iterator[Batch]  # one for each rate, read ahead
    batch_at: Callable[[int], Batch]  # inner step of the schedule -> its batch
    on_step: OnStep
    should_stop: Callable[[], bool]
    save: Callable[[PathState, Sequence[float]], None]  # (state, losses of this phase so far)
    norms: tuple[float, ...] = ()  # gradient norms of the steps in `losses` for which there is one


class PhaseRunner(Protocol):
    """Takes the steps, or fewer if asked to stop. Returns the losses of the whole phase so far.

    This process, several hosts or volunteers may take them.
    """

    def __call__(self, work: PhaseWork) -> PhaseResult: ...
