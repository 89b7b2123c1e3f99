"""AdamW steps whose gradients are one step late: the oracle of a swarm with delayed updates.

The gradient of step t is at the parameters of step t - 1, so machines that exchange gradients can
compute those of the next step meanwhile: one-step delayed parameter update (Ren et al. 2021,
ZeRO-Offload, arXiv 2101.06840, section 5.2). It is not taken there as they are, but where the step
that is not known yet is predicted to lead (Chen et al. 2018, SpecTrain, arXiv 1809.02839).
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from dipaco.inner.state import PathState

# (step, parameters) -> (gradient of the mean loss per target, that loss)
GradientOf = Callable[[int, Any], tuple[Any, Any]]


def delayed_steps(
    state: PathState,
    steps: Iterable[tuple[int, Any, int]],
    gradient_of: GradientOf,
    update: Callable[[PathState, Any, Any], PathState],
    predict: Callable[[PathState, Any], Any],
) -> Iterator[tuple[PathState, Any]]:
    """Yields the state after each step, and the step's loss.

    Args:
      state: before the first of them.
      steps: number, learning rate and delay of each. A delay is 1, or 0 where the gradient is at
        the newest parameters, as in the first step, which has no other.
      gradient_of: see `GradientOf`.
      update: (state, gradient, learning rate) -> state, which leaves the first as it was.
      predict: (state, learning rate of the step from there) -> the parameters after that step, as
        far as they can be told without its gradient.
    """
    predicted = state.parts
    for step, rate, delay in steps:
        gradient, loss = gradient_of(step, predicted if delay else state.parts)
        predicted, state = predict(state, rate), update(state, gradient, rate)
        yield state, loss
