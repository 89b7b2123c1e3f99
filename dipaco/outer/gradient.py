"""Outer gradients: how far the paths moved a module in one phase.

Follows DiPaCo (arXiv 2403.10616) Algorithm 1 lines 11-15 and section 2.7. Arrivals are added one by
one, so a module with 256 paths needs the memory of one. Sums are float32 even for bfloat16
parameters: 256 small differences vanish otherwise.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dipaco import trees
from dipaco.errors import NotFinite, StructureMismatch

Tree = Mapping[str, Any]


def outer_gradient(before: Tree, after: Tree) -> dict[str, Any]:
    """How far one path moved a module: `before - after`, theta_m(t-1) - theta_m,i(t).

    Returns:
      A float32 tree shaped like `before`. It points from new to old, so an optimiser *descends* it.

    Raises:
      StructureMismatch: the path came back with other parts than it was given.

    Source: DiPaCo eq. 2.
    """
    difference = trees.difference(before, after)
    if difference is not None:
        raise StructureMismatch(what="A path", difference=difference)
    new = dict(trees.flatten(after))
    return trees.unflatten(
        {
            name: np.asarray(old, np.float32) - np.asarray(new[name], np.float32)
            for name, old in trees.flatten(before)
        }
    )


def path_weights(documents: Sequence[int], *, by_documents: bool = True) -> np.ndarray:
    """alpha_i of the paths through one module: float64 [paths], summing to one.

    Args:
      documents: documents in each path's shard.
      by_documents: in proportion to them (DiPaCo eq. 3, loss re-weighing); else all equal.
    """
    share = np.asarray(documents, np.float64) if by_documents else np.ones(len(documents))
    return share / share.sum()


class WeightedMean:
    """The running sum of `weight * outer_gradient`, one arrival at a time.

    Floating-point sums depend on their order and arrivals have none: add them in path order where
    bits must not depend on luck. Holds one module; each `add` needs the arrival and, for a moment,
    one more leaf.
    """

    def __init__(self):
        self._sum: dict[str, np.ndarray] = {}

    def add(self, gradient: Tree, weight: float) -> None:
        """Adds one arrival; `gradient` is not kept.

        Raises:
          StructureMismatch: its parts differ from those of earlier arrivals.
          NotFinite: it holds a NaN or an infinity. The sum is unchanged.
        """
        leaves = dict(trees.flatten(gradient))
        if self._sum:
            difference = trees.difference(trees.unflatten(self._sum), gradient)
            if difference is not None:
                raise StructureMismatch(what="An outer gradient", difference=difference)
        for name, leaf in leaves.items():
            if not np.isfinite(leaf).all():
                raise NotFinite(name=name)
        for name, leaf in leaves.items():
            scaled = np.multiply(leaf, np.float32(weight), dtype=np.float32)
            if name in self._sum:
                self._sum[name] += scaled
            else:
                self._sum[name] = scaled

    def take(self) -> dict[str, Any]:
        """The mean so far (weights that sum to one assumed); the running sum starts anew."""
        total, self._sum = self._sum, {}
        return trees.unflatten(total)
