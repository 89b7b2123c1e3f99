"""Outer gradients: how far the paths moved a module in one phase.

Follows DiPaCo (arXiv 2403.10616) Algorithm 1 lines 11-15 and section 2.7. Arrivals are added one by
one, so a module with 256 paths needs the memory of one. Sums are float32 even for bfloat16
parameters: 256 small differences vanish otherwise.

NumPy, on purpose. XLA:CPU and BLAS (`saxpy`) add 10 GB/s to the 4 of NumPy, but they fuse the
product and the sum into one rounding where they have such an instruction, and on how many threads
divide the work depends where they have not: their bits are those of a machine. (XLA also copies
what it is given, unless it lies on a multiple of 64 bytes: 1.3 GB/s. From aligned files, with the
product kept from its sum by an exclusive or with a zero that the compiler does not know, it gives
these very bits at 9 GB/s; but the norms cost it 3 to 6 of those, and beside the thread that reads
and digests, an outer step was no faster: 0.47 and 0.45 of reading its files, against 0.44 and 0.48.
Nor was it with larger pieces for a thread, nor with two arrivals added in one pass over the sum: a
third faster by itself, but four module sizes leave room to read only one ahead, and an outer step
took as long: 0.34 and 0.36 against 0.32 and 0.38.) Every value is added by itself, so that threads
may share the values of a module, and no bit depends on how.
"""

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from dipaco import trees
from dipaco.outer.errors import NotFinite, StructureMismatch

Tree = Mapping[str, Any]
BLOCK_VALUES = 1 << 16  # a quarter of a megabyte: twice that fits a core's second cache
PIECE_VALUES = BLOCK_VALUES << 4  # of a large leaf, for one thread


def outer_gradient(before: Tree, after: Tree) -> dict[str, Any]:
    """How far one path moved a module: `before - after`, theta_m(t-1) - theta_m,i(t).

    Returns:
      A float32 tree shaped like `before`. It points from new to old, so an optimiser *descends* it.

    Raises:
      StructureMismatch: the path came back with other parts than it was given.
      NotFinite: it holds a NaN or an infinity.

    Source: DiPaCo eq. 2.
    """
    difference = trees.difference(before, after)
    if difference is not None:
        raise StructureMismatch(what="A path", difference=difference)
    new = dict(trees.flatten(after))
    gradient = {
        name: np.asarray(old, np.float32) - np.asarray(new[name], np.float32)
        for name, old in trees.flatten(before)
    }
    _check_finite("An outer gradient", gradient)
    return trees.unflatten(gradient)


def path_weights(documents: Sequence[int], *, by_documents: bool = True) -> np.ndarray:
    """alpha_i of the paths through one module: float64 [paths], summing to one.

    Args:
      documents: documents in each path's shard.
      by_documents: in proportion to them (DiPaCo eq. 3, loss re-weighing); else all equal.
    """
    share = np.asarray(documents, np.float64) if by_documents else np.ones(len(documents))
    return share / share.sum()


def weight_in_step(
    weight: float, fan_in: int, fan_in_of_step: int, *, rescale_by_fan_in: bool = True
) -> float:
    """What a contribution counts for in a step that need not be that of its own phase (quorum).

    Its own weight: alpha_i among all paths through the module in its own phase, those that were
    late included, with the fan-in of that phase. So a step that some are late for is shorter, the
    next one is longer, and over the whole training every contribution moves its module as far as if
    nobody had ever been late, a step later. Late ones are not discounted, though they began from
    parameters that are a step old: whoever is often late would count for less for good, and with it
    the text of its shard. Weights of the paths that happened to come, summing to one, would count a
    late path twice: its share goes to the others, and then it comes as well.

    Args:
      weight: alpha_i of `path_weights`, over the paths of its phase.
      fan_in: how many those are.
      fan_in_of_step: by whose square root the mean is going to be rescaled.
      rescale_by_fan_in: whether it is.
    """
    return weight * math.sqrt(fan_in / fan_in_of_step) if rescale_by_fan_in else weight


class WeightedMean:
    """The running sum of `weight * outer_gradient`, one arrival at a time.

    Floating-point sums depend on their order and arrivals have none: add them in path order where
    bits must not depend on luck. Holds one module; each `add` needs the arrival and a block.

    Args:
      threads: who share the values of large leaves; None = the caller alone.
    """

    def __init__(self, threads: ThreadPoolExecutor | None = None):
        self._sum: dict[str, np.ndarray] = {}
        self._threads = threads

    def add(self, gradient: Tree, weight: float) -> float:
        """Adds one arrival; `gradient` is not kept.

        Returns:
          Its norm, before the weight.

        Raises:
          StructureMismatch: its parts differ from those of earlier arrivals. The sum is unchanged.
        """
        leaves = dict(trees.flatten(gradient))
        if not self._sum:
            self._sum = {
                name: np.multiply(leaf, np.float32(weight), out=np.empty(leaf.shape, np.float32))
                for name, leaf in leaves.items()
            }
            return _norm(sum(map(_squares, self._sum.values())), leaves, weight)
        difference = trees.difference(trees.unflatten(self._sum), gradient)
        if difference is not None:
            raise StructureMismatch(what="An outer gradient", difference=difference)
        squares = sum(
            self._add_leaf(self._sum[name].reshape(-1), np.asarray(leaf).reshape(-1), weight)
            for name, leaf in leaves.items()
        )
        return _norm(squares, leaves, weight)

    def _add_leaf(self, total: np.ndarray, leaf: np.ndarray, weight: float) -> float:
        """Returns the sum of the squares of what was added."""
        pieces = [slice(i, i + PIECE_VALUES) for i in range(0, total.size, PIECE_VALUES)]
        add = lambda piece: _add_scaled(total[piece], leaf[piece], np.float32(weight))  # noqa: E731
        alone = self._threads is None or len(pieces) == 1
        return sum((map if alone else self._threads.map)(add, pieces))

    def take(self) -> dict[str, Any]:
        """The mean so far (weights that sum to one assumed); the running sum starts anew.

        Raises:
          NotFinite: it holds a NaN or an infinity. An arrival that does is told here, once for all
            of them: what has been added to a sum cannot make it finite again.
        """
        total, self._sum = self._sum, {}
        _check_finite("The mean of the outer gradients", total)
        return trees.unflatten(total)


def mean_cosine(weights: Sequence[float], norms: Sequence[float], norm_of_mean: float) -> float:
    """How much paths agree on where a module should go: the mean cosine between the outer gradients
    of two of them, pairs weighted by their part in the mean; nan where there is no pair.

    From |sum a_i g_i|^2 = sum_i a_i^2 |g_i|^2 + sum_{i != j} a_i a_j |g_i| |g_j| cos_ij, so that no
    two outer gradients need be in memory at once.

    Args:
      weights: [P] a_i, of each path's outer gradient in the mean.
      norms: [P] |g_i|.
      norm_of_mean: |sum a_i g_i|.
    """
    parts = [weight * norm for weight, norm in zip(weights, norms, strict=True)]
    alone = sum(part * part for part in parts)
    pairs = sum(parts) ** 2 - alone
    if len(parts) < 2 or not pairs > 0:
        return math.nan
    return max(-1.0, min(1.0, (norm_of_mean**2 - alone) / pairs))


def _add_scaled(total: np.ndarray, leaf: np.ndarray, weight: np.float32) -> float:
    """total += weight * leaf, a block at a time: products that stay in the processor's cache cost
    no memory traffic, 4.2 GB/s of `leaf` against 2.3 in one go. Equal bit for bit. Returns the sum
    of the squares of the products, which are in that cache: a seventh more time, where the squares
    of `leaf` take a quarter.
    """
    squares = 0.0
    products = np.empty(min(BLOCK_VALUES, total.size), np.float32)
    for start in range(0, total.size, BLOCK_VALUES):
        block = total[start : start + BLOCK_VALUES]
        product = products[: block.size]
        np.multiply(leaf[start : start + BLOCK_VALUES], weight, out=product)
        np.add(block, product, out=block)
        squares += _squares(product)
    return squares


def _squares(values: np.ndarray) -> float:
    return float(np.vdot(values, values))


def _norm(weighted_squares: float, leaves: Mapping[str, Any], weight: float) -> float:
    """Of the leaves, from the squares of what they are times the weight."""
    if not weight:
        return math.sqrt(sum(_squares(np.asarray(leaf, np.float32)) for leaf in leaves.values()))
    return math.sqrt(weighted_squares) / float(weight)


def _check_finite(what: str, leaves: Mapping[str, np.ndarray]) -> None:
    for name, leaf in leaves.items():
        if not np.isfinite(leaf).all():
            raise NotFinite(what=what, name=name)
