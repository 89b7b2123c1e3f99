"""Documents as arrays of tokens: their first tokens, and windows over all of them.

The router reads the first tokens, and evaluation scores them. Windows cut a document so that every
token after its prefix is predicted exactly once. A window has at most `length` tokens. It begins
with `prefix_tokens` that the window before it has predicted, or, in the first window, that the
router reads. So no token is predicted from fewer.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dipaco.data.corpus import TokenReader
from dipaco.data.tokenizer import Tokenizer

DOCUMENTS_AT_ONCE = 4096  # whole documents in memory


def first_tokens(
    corpus: TokenReader, document_numbers: Sequence[int] | np.ndarray, length: int
) -> tuple[np.ndarray, np.ndarray]:
    """The first `length` tokens of each document.

    Returns:
      tokens: [N, length] int32, padded with 0.
      lengths: [N] int32, how many of them are tokens.
    """
    chunks = [
        _cut(corpus.tokens(document_numbers[start : start + DOCUMENTS_AT_ONCE]), length)
        for start in range(0, max(len(document_numbers), 1), DOCUMENTS_AT_ONCE)
    ]
    tokens, lengths = zip(*chunks, strict=True)
    return np.concatenate(tokens), np.concatenate(lengths)


def _cut(documents: Sequence[np.ndarray], length: int) -> tuple[np.ndarray, np.ndarray]:
    tokens = np.zeros((len(documents), length), dtype=np.int32)
    lengths = np.zeros(len(documents), dtype=np.int32)
    for row, document in enumerate(documents):
        lengths[row] = min(length, len(document))
        tokens[row, : lengths[row]] = document[:length]
    return tokens, lengths


def predicted_bytes(
    tokenizer: Tokenizer, tokens_NT: np.ndarray, lengths_N: np.ndarray, prefix_tokens: int
) -> int:
    """UTF-8 bytes of the text that the tokens after the prefix of each document stand for."""
    return sum(
        tokenizer.num_bytes(tokens[:length]) - tokenizer.num_bytes(tokens[:prefix_tokens])
        for tokens, length in zip(tokens_NT, lengths_N.tolist(), strict=True)
        if length > prefix_tokens
    )


class Windows(NamedTuple):
    """W windows of some documents. Windows of one document follow each other."""

    tokens: np.ndarray  # int32 [W, length], padded with 0
    lengths: np.ndarray  # int32 [W], tokens in each
    documents: np.ndarray  # int64 [W], the index of the document


def cut_windows(
    documents: Sequence[np.ndarray], length: int, prefix_tokens: int, most: int | None = None
) -> Windows:
    """The windows of documents, each longer than its prefix.

    Args:
      most: number of windows of a document, the first ones. None = all.
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
