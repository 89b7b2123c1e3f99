"""The contract of what runs a phase in place of `run_phase`: a group of volunteers, for example."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from dipaco.inner.phase import OnStep, PhaseResult
from dipaco.inner.state import PathState
from dipaco.inner.step import Batch


class PhaseWork(NamedTuple):
    """One phase of one path, as input of a `PhaseRunner`."""

    origin: str  # names the phase and its first modules: equal origins are the same work
    state: PathState  # NumPy arrays: at the start of the phase, or of a partial snapshot
    first_step: int  # next inner step, counted over all phases
    losses: tuple[float, ...]  # of the steps of this phase already in `state`
    rates: np.ndarray  # float32 [steps left], the learning rate of each
    batch_at: Callable[[int], Batch]  # inner step, counted over all phases -> its batch
    on_step: OnStep
    should_stop: Callable[[], bool]
    save: Callable[[PathState, Sequence[float]], None]  # (state, losses of this phase so far)


class PhaseRunner(Protocol):
    """Takes the steps of a phase and returns the losses of the whole phase."""

    def __call__(self, work: PhaseWork) -> PhaseResult: ...
