"""Leaves cut into blocks of up to 4,096 values, a token's row never in one block with another's.

A row of the embedding, or a column of the head, is a token's. In a block that several tokens share,
the largest values are those of the frequent ones, and a rare token's would wait for ever. So the
leaves of the vocabulary are cut along their tokens, and each row has its share of the places; rows
longer than a block are several. All other leaves are cut as they lie in memory.

Axes: B blocks of L values each.
"""

import math
from typing import NamedTuple

import numpy as np

from dipaco.model.config import VOCABULARY_AXIS

BLOCK = 4096  # so that a place takes 12 bits (arXiv 2508.15706)


class Cuts(NamedTuple):
    """How a leaf is cut: each row into whole blocks, and a shorter one of what is left."""

    rows: int
    length: int  # of a row
    token_axis: int | None

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """(B, L): the number of blocks, and their length; whole ones first."""
        whole, rest = divmod(self.length, BLOCK)
        both = [(self.rows * whole, BLOCK), (self.rows, rest)]
        return [(count, length) for count, length in both if count and length]


def cuts_of(name: str, shape: tuple[int, ...]) -> Cuts:
    """How a leaf of this name and shape is cut."""
    axis = VOCABULARY_AXIS.get(name)
    rows = 1 if axis is None else shape[axis]
    return Cuts(rows, math.prod(shape) // max(rows, 1), axis)


def cut(leaf: np.ndarray, cuts: Cuts) -> list[np.ndarray]:
    """The blocks [B, L] of a leaf, one array for each of its shapes."""
    if cuts.token_axis is not None:
        leaf = np.moveaxis(leaf, cuts.token_axis, 0)
    rows = leaf.reshape(cuts.rows, cuts.length)
    end = cuts.length - cuts.length % BLOCK
    return [
        part.reshape(shape)
        for part, shape in zip(
            (part for part in (rows[:, :end], rows[:, end:]) if part.size), cuts.shapes, strict=True
        )
    ]


def joined(parts: list[np.ndarray], cuts: Cuts, shape: tuple[int, ...]) -> np.ndarray:
    """The inverse of `cut`: a leaf of this shape."""
    rows = [part.reshape(cuts.rows, -1) for part in parts]
    whole = rows[0] if len(rows) == 1 else np.concatenate(rows, axis=1) if rows else np.empty(0)
    if cuts.token_axis is None:
        return whole.astype(np.float32, copy=False).reshape(shape)
    others = [size for axis, size in enumerate(shape) if axis != cuts.token_axis]
    moved = whole.astype(np.float32, copy=False).reshape(cuts.rows, *others)
    return np.ascontiguousarray(np.moveaxis(moved, 0, cuts.token_axis))
