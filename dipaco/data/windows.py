"""Windows: a document cut so that every token after its prefix is predicted exactly once.

A window has at most `length` tokens, and begins with `prefix_tokens` that the one before it has
predicted (in the first: that the router reads). So no token is predicted from fewer.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Windows(NamedTuple):
    """W windows of some documents, those of a document one after another."""

    tokens: np.ndarray  # int32 [W, length], padded with 0
    lengths: np.ndarray  # int32 [W], how many are tokens
    documents: np.ndarray  # int64 [W], the index of the document


def cut_windows(
    documents: Sequence[np.ndarray], length: int, prefix_tokens: int, most: int | None = None
) -> Windows:
    """The windows of documents, each longer than its prefix.

    Args:
      documents: tokens of each.
      length: tokens of a window, more than `prefix_tokens`.
      prefix_tokens: of a window that are not predicted.
      most: windows of a document, its first; None = all.
    """
    assert 0 < prefix_tokens < length
    rows, owners = [], []
    for number, tokens in enumerate(documents):
        starts = range(0, len(tokens) - prefix_tokens, length - prefix_tokens)[:most]
        rows += [tokens[start : start + length] for start in starts]
        owners += [number] * len(starts)
    lengths = np.array([len(row) for row in rows], dtype=np.int32)
    windows = np.zeros((len(rows), length), dtype=np.int32)
    for window, row in zip(windows, rows, strict=True):
        window[: len(row)] = row
    return Windows(windows, lengths, np.array(owners, dtype=np.int64))
