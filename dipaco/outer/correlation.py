"""Cosine between the mean outer gradients of a module in two successive phases.

The cosine tells what momentum would do. Near 1 the steps go on in one direction, and momentum makes
each of them longer. Near 0 the last step says nothing about the next, and momentum repeats its
noise. Below 0 steps take back what the last ones did, and momentum works against them.

No mean is stored. Each is computed from what its step left. From theta(t) = theta(t-1) - lr (g + mu
u(t)) it follows that lr g = theta(t-1) - theta(t) - lr mu u(t): the parameters before and after the
step, and its momentum afterwards.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from dipaco.outer.config import OuterSettings

BLOCK_VALUES = 1 << 16  # Values of six arrays that fit a core's cache.


class ModuleAt(NamedTuple):
    """A module at the start of a phase."""

    parameters: Mapping[str, Any]
    momentum: Mapping[str, Any]  # The outer state after the step that made it.


def lag_cosine(
    settings: OuterSettings, before: Mapping[str, Any], between: ModuleAt, after: ModuleAt
) -> float | None:
    """The cosine between the means of two successive steps over all values. None if either mean is
    zero.

    Args:
      before: the parameters before the first step.
    """
    carried = np.float32(settings.learning_rate * settings.momentum)
    sums = np.zeros(3)
    for one, two, three, first, second in _leaves(before, between, after):
        for start in range(0, one.size, BLOCK_VALUES):
            block = slice(start, start + BLOCK_VALUES)
            last, now = one[block] - two[block], two[block] - three[block]
            if first is not None and second is not None:
                last -= carried * first[block]
                now -= carried * second[block]
            sums += [np.einsum("i,i->", *pair) for pair in ((last, now), (last, last), (now, now))]
    product, last_squares, squares = sums.tolist()
    if not (last_squares and squares):
        return None
    return max(-1.0, min(1.0, product / math.sqrt(last_squares * squares)))


def _leaves(
    before: Mapping[str, Any], between: ModuleAt, after: ModuleAt
) -> Iterator[tuple[Any, ...]]:
    """For each leaf flat, float32: its three values and its two momenta, None without momentum."""
    for part in before:
        trees_of_part = before[part], between.parameters[part], after.parameters[part]
        values = [jax.tree.leaves(tree) for tree in trees_of_part]
        states = [jax.tree.leaves(module.momentum[part]) for module in (between, after)]
        absent = [None] * len(values[0])
        for leaves in zip(*values, *(state or absent for state in states), strict=True):
            yield tuple(
                None if leaf is None else np.asarray(leaf, np.float32).reshape(-1)
                for leaf in leaves
            )
