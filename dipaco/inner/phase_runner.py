"""A phase that is run elsewhere: by a group of machines, which gives what `run_phase` gives."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from dipaco.inner.phase import OnStep, PhaseResult
from dipaco.inner.state import PathState
from dipaco.inner.step import Batch


class PhaseWork(NamedTuple):
    """One phase of one path, as it is handed over."""

    origin: str  # names the phase and the modules it began with: equal means the same work
    state: PathState  # NumPy arrays: where the phase begins, or was saved part-way
    first_step: int  # of `state`, counted over all phases
    losses: tuple[float, ...]  # of the steps of this phase that `state` has behind it
    rates: np.ndarray  # float32 [steps left], the learning rate of each
    batch_at: Callable[[int], Batch]  # inner step, counted over all phases -> its batch
    on_step: OnStep
    should_stop: Callable[[], bool]
    save: Callable[[PathState, Sequence[float]], None]  # (state, losses of this phase so far)


class PhaseRunner(Protocol):
    """Takes the steps of a phase; the result's losses are those of the whole phase."""

    def __call__(self, work: PhaseWork) -> PhaseResult: ...
