"""Rows of the vocabulary, averaged by the paths that have their tokens. Ours, not the paper's.

A token's *row* is its row of the embedding and its column of the head. A path whose shard has no
such token learns nothing of it, but the softmax pushes the column down at every step, and AdamW
makes full steps of that: in a plain mean such paths undo what the others learn. So a row is
averaged by occurrences: the weight of path i for token v is n_i(v) / sum_j n_j(v), where n_i(v)
counts the token in the shard of path i. That is exactly 0 for a path without the token, and the
paper's alpha_i for a token that no path has. The sum is over the paths that take part in the phase.
If no path with the token takes part, its row gets no weight from the others, and only the momentum
of earlier steps moves it on.

It generalises alpha_i = |D_i| / sum |D| (arXiv 2403.10616, eq. 3) from shards to rows: with counts
in proportion to documents it is the paper's mean. The rescale by the root of the fan-in (section
2.7) takes the row's effective fan-in, 1 / sum_i w_i^2: the number of paths if all have equal
counts, one if only one has the token. Related: FedSubAvg (arXiv 2109.07704).

A path does not send rows that would have no weight (`sent_rows`).

Axes: P paths through a module that take part in a phase, V tokens of the vocabulary.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dipaco import trees
from dipaco.model.config import VOCABULARY_AXIS


def has_rows(tree: Mapping[str, Any]) -> bool:
    """True if a module owns a part of the vocabulary."""
    return any(name in VOCABULARY_AXIS for name, _ in trees.flatten(tree))


class RowCounts(NamedTuple):
    """Occurrences of tokens in the shards of the paths through a module."""

    counts_PV: np.ndarray  # int64, for the paths that take part in the phase
    held_V: np.ndarray  # bool: whether any path through the module has the token, in it or not


def counts_of(
    counts: np.ndarray, through: Sequence[int], taking_part: Sequence[int] | None = None
) -> RowCounts:
    """The counts of a module in a phase.

    Args:
      counts: int64 [paths, V], over all paths of the topology.
      taking_part: the paths of `through` that take part in the phase. None: all.
    """
    counts_of_through = counts[list(through)]
    here = counts_of_through if taking_part is None else counts[list(taking_part)]
    return RowCounts(here, np.any(counts_of_through > 0, axis=0))


def row_shares(counts: RowCounts, alpha_P: np.ndarray) -> np.ndarray:
    """float64 [P, V]: the weight of each path for each token's row. The sum over P is one, or zero
    for a token that only paths have that take no part.

    Args:
      alpha_P: the paths' weights from `gradient.path_weights`, for tokens that no path has.
    """
    counts_PV, held_V = counts
    total_V = counts_PV.sum(axis=0, dtype=np.float64)
    by_count_PV = counts_PV / np.where(total_V > 0, total_V, 1.0)
    return np.where(held_V, by_count_PV, np.asarray(alpha_P, np.float64)[:, None])


def effective_fan_in(share_PV: np.ndarray) -> np.ndarray:
    """float64 [V]: number of equal paths that each row's mean is worth, 1 / sum of squares. 1 for a
    row without a weight.
    """
    squares_V = np.square(share_PV).sum(axis=0)
    return 1.0 / np.where(squares_V > 0, squares_V, 1.0)


def row_weights_in_step(
    share_V: np.ndarray, fan_in_V: np.ndarray, fan_in_of_step: int, *, rescale_by_fan_in: bool
) -> np.ndarray:
    """float32 [V]: the weights of one contribution in a step, as `gradient.weight_in_step`.

    The step multiplies the mean by the root of its fan-in. These weights turn that into the root of
    each row's effective fan-in, in the contribution's phase.
    """
    if rescale_by_fan_in:
        share_V = share_V * np.sqrt(fan_in_V / fan_in_of_step)
    return share_V.astype(np.float32)


def sent_rows(counts: RowCounts, path: int) -> np.ndarray:
    """bool [V]: the rows that a path contributes. The others would have no weight: another path
    through the module has the token and this one has not.

    Args:
      path: its place among the paths of `counts`, which take part in the phase.
    """
    return (counts.counts_PV[path] > 0) | ~counts.held_V


def take_rows(tree: Mapping[str, Any], sent_V: np.ndarray) -> dict[str, Any]:
    """A tree of a module with only some rows of the vocabulary."""
    return trees.unflatten(
        {
            name: np.compress(sent_V, leaf, axis=VOCABULARY_AXIS[name])
            if name in VOCABULARY_AXIS
            else leaf
            for name, leaf in trees.flatten(tree)
        }
    )


def put_rows(
    tree: Mapping[str, Any], sent_V: np.ndarray, others: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The inverse of `take_rows`: a tree with all rows. Rows that were not taken are the rows of
    `others`, or 0.
    """
    rest = {} if others is None else dict(trees.flatten(others))

    def put(name: str, leaf: np.ndarray) -> np.ndarray:
        axis = VOCABULARY_AXIS[name]
        shape = list(leaf.shape)
        shape[axis] = len(sent_V)
        whole = np.array(rest[name]) if name in rest else np.zeros(shape, leaf.dtype)
        whole[(slice(None),) * axis + (sent_V,)] = leaf
        return whole

    leaves = trees.flatten(tree)
    return trees.unflatten(
        {name: put(name, leaf) if name in VOCABULARY_AXIS else leaf for name, leaf in leaves}
    )


def along_rows(name: str, row_weight_V: np.ndarray) -> np.ndarray:
    """Weights of tokens, shaped to multiply a leaf of the vocabulary."""
    return row_weight_V[:, None] if VOCABULARY_AXIS[name] == 0 else row_weight_V[None, :]
