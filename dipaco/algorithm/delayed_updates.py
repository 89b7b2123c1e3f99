"""AdamW steps with gradients that are one step late. A swarm with delayed updates equals them.

The gradient of step t is computed before step t - 1 is known, so machines exchange one gradient
while they compute the next: the one-step delayed parameter update of ZeRO-Offload (Ren et al. 2021,
arXiv 2101.06840, section 5.2). The gradient is taken at the parameters that step t - 1 is predicted
to give (SpecTrain, Chen et al. 2018, arXiv 1809.02839).
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
      state: the path's state before the first step.
      steps: number, learning rate and delay of each step. A delay of 0 takes the gradient at the
        newest parameters, as the first step must. Others have 1.
      update: (state, gradient, learning rate) -> the next state. It does not change its argument.
      predict: (state, learning rate) -> the parameters after the next step, as far as they are
        known without its gradient.
    """
    predicted = state.parts
    for step, rate, delay in steps:
        gradient, loss = gradient_of(step, predicted if delay else state.parts)
        predicted, state = predict(state, rate), update(state, gradient, rate)
        yield state, loss
