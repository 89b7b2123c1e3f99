"""Outer gradients: how far the paths moved a module in one phase.

Follows DiPaCo (arXiv 2403.10616) Algorithm 1 lines 11-15 and section 2.7. Contributions are added
one by one, so a module with 256 paths needs the memory of one. Sums are float32 even for bfloat16
parameters: 256 small differences vanish otherwise.

Sums are made by NumPy, so that no bit depends on the machine. XLA:CPU and BLAS (`saxpy`) add at 10
GB/s instead of 4, but whether they round product and sum once or twice depends on the processor,
and in part on the number of threads. Every value is added by itself, so threads may share the
values of a module in any way.

The outer step is bound by the thread that reads and digests files. These did not make it faster:
XLA kept from fusing product and sum (same bits, 9 GB/s without norms), larger pieces for a thread,
and two contributions in one pass (a third faster alone, but it leaves memory for reading only one
ahead).
"""

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from dipaco import trees
from dipaco.model.config import VOCABULARY_AXIS
from dipaco.outer.errors import NotFinite, StructureMismatch
from dipaco.outer.vocabulary import along_rows

Tree = Mapping[str, Any]
BLOCK_VALUES = 1 << 16  # 256 KB: two of them fit a core's L2 cache
PIECE_VALUES = BLOCK_VALUES << 4  # the share of a large leaf that one thread takes


def outer_gradient(before: Tree, after: Tree) -> dict[str, Any]:
    """Distance by which one path moved a module: `before - after`, theta_m(t-1) - theta_m,i(t).

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
      by_documents: in proportion to documents (DiPaCo eq. 3, loss re-weighing). False = all equal.
    """
    share = np.asarray(documents, np.float64) if by_documents else np.ones(len(documents))
    return share / share.sum()


def weight_in_step(
    weight: float, fan_in: int, fan_in_of_step: int, *, rescale_by_fan_in: bool = True
) -> float:
    """The weight of a contribution in a step that may be later than its own phase (quorum).

    It keeps the alpha_i and the fan-in of its own phase, over all paths through the module that
    take part, late ones included. So a step without some contributions is shorter and the next one
    longer. Over the training a late contribution moves its module as far as one in time, but a step
    later. Late ones are not discounted, though they began from parameters a step old: a path that
    is often late, and the text of its shard, would count for less. Weights over the paths that
    arrived in time, summing to one, would count a late path twice: once by the share that the
    others get, once when it arrives.

    Args:
      weight: alpha_i from `path_weights`, over the paths of its phase.
      fan_in_of_step: the fan-in that rescales the mean of the step.
    """
    return weight * math.sqrt(fan_in / fan_in_of_step) if rescale_by_fan_in else weight


class ContributionNorm(NamedTuple):
    """The norm of a contribution, before its weight."""

    whole: float
    by_weight: float  # without the rows of the vocabulary that have weights of their own


class WeightedMean:
    """The running sum of `weight * outer_gradient`, one contribution at a time.

    Floating-point sums depend on their order: add contributions in path order if bits must be
    repeatable. The sum takes the memory of one module, and each `add` that of a contribution and a
    block.

    Args:
      threads: share the values of large leaves. None = the caller's thread alone.
    """

    def __init__(self, threads: ThreadPoolExecutor | None = None):
        self._sum: dict[str, np.ndarray] = {}
        self._threads = threads

    def add(
        self, gradient: Tree, weight: float, row_weight_V: np.ndarray | None = None
    ) -> ContributionNorm:
        """Adds one contribution. `gradient` is float32 and is not kept.

        Args:
          weight: the weight of all its values.
          row_weight_V: float32, the weights of the rows of the vocabulary (`vocabulary.py`). None:
            `weight` holds for them too.

        Raises:
          StructureMismatch: its parts differ from those added before. The sum is unchanged.
        """
        leaves = dict(trees.flatten(gradient))
        is_first = not self._sum
        difference = None if is_first else trees.difference(trees.unflatten(self._sum), gradient)
        if difference is not None:
            raise StructureMismatch(what="An outer gradient", difference=difference)
        of_rows = (
            {}
            if row_weight_V is None
            else {n: leaves.pop(n) for n in VOCABULARY_AXIS if n in leaves}
        )
        for name, leaf in of_rows.items():
            assert row_weight_V is not None
            product = np.asarray(leaf, np.float32) * along_rows(name, row_weight_V)
            self._sum[name] = product if is_first else np.add(self._sum[name], product)
        if is_first:
            products = {
                name: np.multiply(leaf, np.float32(weight), out=np.empty(leaf.shape, np.float32))
                for name, leaf in leaves.items()
            }
            self._sum |= products
            squares = sum_of_squares(products)
        else:
            squares = sum(
                self._add_leaf(self._sum[name].reshape(-1), np.asarray(leaf).reshape(-1), weight)
                for name, leaf in leaves.items()
            )
        by_weight = _norm(squares, leaves, weight)
        rest = sum_of_squares(of_rows)
        return ContributionNorm(math.sqrt(by_weight**2 + rest) if of_rows else by_weight, by_weight)

    def _add_leaf(self, total: np.ndarray, leaf: np.ndarray, weight: float) -> float:
        """Adds in place. Returns the sum of the squares of the added products."""
        pieces = [slice(i, i + PIECE_VALUES) for i in range(0, total.size, PIECE_VALUES)]
        add = lambda piece: _add_scaled(total[piece], leaf[piece], np.float32(weight))  # noqa: E731
        alone = self._threads is None or len(pieces) == 1
        return sum((map if alone else self._threads.map)(add, pieces))

    def take(self) -> dict[str, Any]:
        """The mean so far, if the weights sum to one. Resets the running sum.

        Raises:
          NotFinite: it holds a NaN or an infinity. One check here serves all contributions: a sum
            that is not finite stays so.
        """
        total, self._sum = self._sum, {}
        _check_finite("The mean of the outer gradients", total)
        return trees.unflatten(total)


def mean_cosine(weights: Sequence[float], norms: Sequence[float], norm_of_mean: float) -> float:
    """Mean cosine between the outer gradients of two paths of a module. Pairs are weighted by their
    part in the mean. nan if there is no pair.

    |sum a_i g_i|^2 = sum_i a_i^2 |g_i|^2 + sum_{i != j} a_i a_j |g_i| |g_j| cos_ij gives it, and no
    two outer gradients are in memory at once.

    Args:
      weights: [P] a_i, the weight of each path's outer gradient in the mean.
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
    """total += weight * leaf. Returns the sum of the squares of the products.

    One block is added at a time, so that products stay in the processor's cache: 4.2 GB/s of `leaf`
    against 2.3 in one go, equal bit for bit. Squares of products cost a seventh more time, squares
    of `leaf` would cost a quarter.
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


def sum_of_squares(leaves: Mapping[str, Any]) -> float:
    """Sum of the squares of all values."""
    flat = (np.asarray(leaf, np.float32).reshape(-1) for leaf in leaves.values())
    return sum(
        _squares(values[start : start + BLOCK_VALUES])
        for values in flat
        for start in range(0, values.size, BLOCK_VALUES)
    )


def _squares(block: np.ndarray) -> float:
    # NumPy's own loop. BLAS (`vdot`) gives large arrays to a pool of one thread a core, which wait
    # for each other: on a machine with other work it was up to a hundred times slower.
    return float(np.einsum("i,i->", block, block))


def _norm(weighted_squares: float, leaves: Mapping[str, Any], weight: float) -> float:
    """Norm of the leaves, from the sum of squares of the leaves times the weight."""
    if not weight:
        return math.sqrt(sum_of_squares(leaves))
    return math.sqrt(weighted_squares) / float(weight)


def _check_finite(what: str, leaves: Mapping[str, np.ndarray]) -> None:
    for name, leaf in leaves.items():
        if not np.isfinite(leaf).all():
            raise NotFinite(what=what, name=name)
