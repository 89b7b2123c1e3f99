"""Cosine between the mean outer gradients of a module in two successive phases.

The cosine tells what momentum would do. Near 1 the steps go on in one direction, and momentum makes
each of them longer. Near 0 the last step says nothing about the next, and momentum repeats its
noise. Below 0 steps take back what the last ones did, and momentum works against them.

The last mean is not stored but computed from the records of a step. From theta(t) = theta(t-1) -
lr (g + mu u(t)) it follows that lr g = theta(t-1) - theta(t) - lr mu u(t): the parameters before
and after the step, and its momentum afterwards. Since a step records all three, the cosine has the
same bits after a kill.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from dipaco import trees
from dipaco.outer.config import OuterSettings

# (name of a leaf, place of the first value in it, values): a tree, leaf by leaf, each in pieces
Pieces = Iterator[tuple[str, int, np.ndarray]]


def lag_cosine(
    settings: OuterSettings,
    earlier: Pieces,
    before: Mapping[str, Any],
    momentum: Mapping[str, Any],
    mean: Mapping[str, Any],
) -> float | None:
    """The cosine between the means of two phases over all values. None if either mean is zero.

    Args:
      earlier: theta(t-1), before the last step. In pieces, since three modules are in memory.
      before: theta(t), after the last step.
      momentum: the outer state after the last step.
      mean: the mean outer gradient of this phase.
    """
    now, new = dict(trees.flatten(before)), dict(trees.flatten(mean))
    traces = {name: trace for part in before for name, trace in _traces(part, before, momentum)}
    carried = np.float32(settings.learning_rate * settings.momentum)
    product = last_squares = squares = 0.0
    for name, start, values in earlier:
        piece = slice(start, start + values.size)
        last = values.astype(np.float64) - now[name].reshape(-1)[piece]
        if traces:
            last -= carried * traces[name].reshape(-1)[piece]
        gradient = new[name].reshape(-1)[piece].astype(np.float64)
        product += float(np.vdot(gradient, last))
        last_squares += float(np.vdot(last, last))
        squares += float(np.vdot(gradient, gradient))
    if not (last_squares and squares):
        return None
    return max(-1.0, min(1.0, product / math.sqrt(last_squares * squares)))


def _traces(
    part: str, before: Mapping[str, Any], momentum: Mapping[str, Any]
) -> Iterator[tuple[str, np.ndarray]]:
    """(name of a leaf, its momentum) for each leaf of a part. Empty without momentum."""
    leaves = jax.tree.leaves(momentum[part])
    names = [name for name, _ in trees.flatten({part: before[part]})]
    return zip(names, leaves, strict=True) if leaves else iter(())
