"""Leaves cut into blocks of up to 4,096 values. Leaves of the vocabulary are also cut by token.

A row of the embedding, or a column of the head, is a token's. Leaves of the vocabulary are cut with
the values of a token side by side, other leaves as they lie in memory.

Axes: B blocks of L values each.
"""

import math
from typing import NamedTuple

import numpy as np

from dipaco.model.config import VOCABULARY_AXIS

BLOCK = 4096  # so that a place takes 12 bits (arXiv 2508.15706)


class Cuts(NamedTuple):
    """A leaf as rows, each cut into blocks of one length and a shorter one at its end."""

    rows: int
    length: int  # values of a row
    block: int
    token_axis: int | None

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """(B, L): the number of blocks, and their length. The shorter ones come last."""
        whole, rest = divmod(self.length, self.block)
        both = [(self.rows * whole, self.block), (self.rows, rest)]
        return [(count, length) for count, length in both if count and length]


def by_size(name: str, shape: tuple[int, ...]) -> Cuts:
    """Blocks of 4,096 values."""
    return Cuts(1, math.prod(shape), BLOCK, VOCABULARY_AXIS.get(name))


def by_token(name: str, shape: tuple[int, ...], least: int) -> Cuts | None:
    """Blocks of one token each. Tokens with less than `least` values share one, and a token with
    more than 4,096 has several. None: the leaf is not of the vocabulary.
    """
    axis = VOCABULARY_AXIS.get(name)
    if axis is None or not math.prod(shape):
        return None
    tokens = shape[axis]
    width = math.prod(shape) // tokens
    if width > BLOCK:
        return Cuts(tokens, width, BLOCK, axis)
    together = max(1, min(-(-least // width), BLOCK // width))
    return Cuts(1, tokens * width, together * width, axis)


def cut(leaf: np.ndarray, cuts: Cuts) -> list[np.ndarray]:
    """The blocks [B, L] of a leaf, one array for each of `cuts.shapes`."""
    if cuts.token_axis is not None:
        leaf = np.moveaxis(leaf, cuts.token_axis, 0)
    rows = leaf.reshape(cuts.rows, cuts.length)
    end = cuts.length - cuts.length % cuts.block
    parts = (part for part in (rows[:, :end], rows[:, end:]) if part.size)
    return [part.reshape(shape) for part, shape in zip(parts, cuts.shapes, strict=True)]


def joined(parts: list[np.ndarray], cuts: Cuts, shape: tuple[int, ...]) -> np.ndarray:
    """The inverse of `cut`: a float32 leaf of this shape."""
    if not parts:
        return np.zeros(shape, np.float32)
    rows = [part.reshape(cuts.rows, -1) for part in parts]
    whole = rows[0] if len(rows) == 1 else np.concatenate(rows, axis=1)
    if cuts.token_axis is None:
        return whole.reshape(shape)
    others = [size for axis, size in enumerate(shape) if axis != cuts.token_axis]
    by_token = whole.reshape(shape[cuts.token_axis], *others)
    return np.ascontiguousarray(np.moveaxis(by_token, 0, cuts.token_axis))
