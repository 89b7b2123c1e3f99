"""Near duplicates: spans of training documents that a held document has as well.

A licence, a quotation or an edited copy is in training under one group and in `tune` or `test`
under another, and a model that has read it is measured by its memory. So these spans are cut out of
training documents, and what is left on both sides of one stands as documents of their own, unless
it is short. Brown et al. (GPT-3, arXiv 2005.14165, appendix C) do so with 13 words.

Only held documents are in memory, with about 24 bytes for each of their tokens. Training documents
pass by in chunks. A span is counted in tokens, so slices change nothing.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from dipaco.data.encode import SliceTokens
from dipaco.data.pack import ascending
from dipaco.data.splits import HELD, SPLITS, splitmix

SPAN = 16  # tokens
# Text of which more than this share would be cut repeats itself by nature, as a log does. It stays.
MOST_CUT = 0.25  # a share of the tokens of training documents
CHUNK_TOKENS = 1 << 19


class Pieces(NamedTuple):
    """The pieces that are written: most kept documents whole, of some what lies between spans."""

    documents: np.ndarray  # int64 [M], ascending: number among the kept documents
    starts: np.ndarray  # int64 [M] tokens
    stops: np.ndarray  # int64 [M]
    lengths: np.ndarray  # int64 [M] tokens of the whole document
    num_cut: int  # training documents with a span of a held one
    train_tokens: int  # of all training documents
    tokens_in_spans: int  # of these
    tokens_left_out: int  # those in spans, and too few beside them. 0 = nothing is cut


def pieces_of(
    slices: Sequence[SliceTokens], token_type: str, splits: np.ndarray, shortest: int
) -> Pieces:
    """Finds the spans of held documents in training documents.

    Args:
      splits: [N] uint8, of the kept documents.
      shortest: tokens of the shortest held document that counts, and of the shortest piece that is
        left of a training document.
    """
    is_train_N = splits == SPLITS.index("train")
    is_held_N = np.isin(splits, [SPLITS.index(split) for split in HELD])
    lengths_N = np.concatenate([each.lengths for each in slices])
    train_tokens = int(lengths_N[is_train_N].sum(dtype=np.int64))
    index = _Index(
        [
            hashes[places]
            for *_, hashes, places in _spans(
                slices, token_type, is_held_N & (lengths_N >= shortest)
            )
        ]
    )
    cut: list[np.ndarray] = []  # [n, 3] each: document, start, stop
    is_whole_N, tokens_in_spans = np.ones(len(lengths_N), bool), 0
    for first, lengths, hashes, places in _spans(slices, token_type, is_train_N):
        is_in_span = _covered(places[index.has(hashes[places])], int(lengths.sum()))
        tokens_in_spans += int(is_in_span.sum())
        ends = np.cumsum(lengths)
        touched = np.unique(np.searchsorted(ends, np.flatnonzero(is_in_span), side="right"))
        is_whole_N[first + touched] = False
        for number in touched.tolist():
            is_left = ~is_in_span[ends[number] - lengths[number] : ends[number]]
            edges = np.flatnonzero(np.diff(is_left, prepend=False, append=False)).reshape(-1, 2)
            edges = edges[edges[:, 1] - edges[:, 0] >= shortest]
            cut.append(np.insert(edges, 0, first + number, axis=1))
    num_cut = int((~is_whole_N).sum())
    if tokens_in_spans > MOST_CUT * train_tokens:
        cut, is_whole_N = [], np.ones(len(lengths_N), bool)
    whole = np.flatnonzero(is_whole_N)
    edges = np.stack([whole, np.zeros_like(whole), lengths_N[whole]], axis=1)
    edges = np.concatenate([edges, *cut])
    documents, starts, stops = edges[np.argsort(edges[:, 0], kind="stable")].T
    tokens_left_out = int(lengths_N.sum(dtype=np.int64) - (stops - starts).sum())
    return Pieces(
        *(documents, starts, stops, lengths_N[documents].astype(np.int64)),
        *(num_cut, train_tokens, tokens_in_spans, tokens_left_out),
    )


def _spans(
    slices: Sequence[SliceTokens], token_type: str, chosen_N: np.ndarray
) -> Iterator[tuple[int, np.ndarray, np.ndarray, np.ndarray]]:
    """Documents in chunks: the first one's number, int64 lengths, a hash of the span at each token,
    and the places of spans that are within one of the chosen documents.
    """
    first_of_slice = 0
    for lengths_n, file in slices:
        ends_n = np.cumsum(lengths_n, dtype=np.int64)
        has_tokens = len(ends_n) > 0 and ends_n[-1] > 0  # an empty file cannot be mapped
        tokens = np.memmap(file, token_type, mode="r") if has_tokens else np.zeros(0, token_type)
        first = start = 0
        while first < len(lengths_n):
            stop = max(first + 1, int(np.searchsorted(ends_n, start + CHUNK_TOKENS, side="right")))
            lengths = lengths_n[first:stop].astype(np.int64)
            hashes = _hashes(tokens[start : ends_n[stop - 1]])
            ends = np.repeat(ends_n[first:stop] - start, lengths)[: len(hashes)]
            is_chosen = np.repeat(chosen_N[first_of_slice:][first:stop], lengths)[: len(hashes)]
            is_within = is_chosen & (np.arange(len(hashes)) + SPAN <= ends)
            yield first_of_slice + first, lengths, hashes, np.flatnonzero(is_within)
            first, start = stop, int(ends_n[stop - 1])
        first_of_slice += len(lengths_n)


def _hashes(tokens: np.ndarray) -> np.ndarray:
    """[n] tokens -> uint64 [n - SPAN + 1], of SPAN tokens each, by doubling."""
    hashes, width = splitmix(tokens, 0), 1
    while width < SPAN:
        hashes = splitmix(hashes[:-width], width) + hashes[width:]
        width *= 2
    return hashes


def _covered(starts: np.ndarray, num_tokens: int) -> np.ndarray:
    """Bool [num_tokens]: the tokens in spans with these (different) starts."""
    steps = np.zeros(num_tokens + 1, np.int32)
    steps[starts] += 1
    steps[starts + SPAN] -= 1
    return np.cumsum(steps[:-1]) > 0


class _Index:
    """A set of hashes. Most that are not in it are told by a table of their first bits."""

    def __init__(self, hashes: Sequence[np.ndarray]):
        self._hashes = ascending(np.concatenate([np.zeros(0, np.uint64), *hashes]))
        bits = max(1, len(self._hashes) * 16).bit_length()
        self._shift = np.uint64(64 - bits)
        self._is_there = np.zeros(1 << bits, bool)
        self._is_there[self._hashes >> self._shift] = True

    def has(self, hashes: np.ndarray) -> np.ndarray:
        """Bool [n]."""
        found = self._is_there[hashes >> self._shift]
        likely = np.flatnonzero(found)
        places = np.searchsorted(self._hashes, hashes[likely])
        found[likely] = self._hashes.take(places, mode="clip") == hashes[likely]
        return found
