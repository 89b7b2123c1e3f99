"""The first tokens of documents: what the router reads and what evaluation scores."""

from collections.abc import Sequence

import numpy as np

from dipaco.data.corpus import TokenReader

CHUNK = 4096  # whole documents in memory at once


def first_tokens(
    corpus: TokenReader, document_numbers: Sequence[int] | np.ndarray, length: int
) -> tuple[np.ndarray, np.ndarray]:
    """The first `length` tokens of each document.

    Returns:
      tokens: [N, length] int32, padded with 0.
      lengths: [N] int32, how many of them are tokens.
    """
    chunks = [
        _cut(corpus.tokens(document_numbers[start : start + CHUNK]), length)
        for start in range(0, max(len(document_numbers), 1), CHUNK)
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
