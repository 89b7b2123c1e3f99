"""Batches by number: step s of a plan and a seed is always the same batch.

Grain shuffles the rows in every epoch by another permutation, which is computed and not stored.
`repeat` comes after `shuffle`, or epochs would mix. So a position in the data is one integer, the
step. The step does not say which data: store `fingerprint` with it, and compare before resuming.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from dipaco.data.corpus import TokenReader
from dipaco.data.pack import RowPlan
from dipaco.files import digest_of

FORMAT_VERSION = 1  # raise it when a change gives the same step another batch
READ_AHEAD = 8  # batches

Batch = dict[str, np.ndarray]


class Rows:
    """The rows of a plan as a random-access source for Grain."""

    def __init__(self, corpus: TokenReader, plan: RowPlan):
        self.corpus = corpus
        self.plan = plan

    def __len__(self) -> int:
        return self.plan.num_rows

    def __getitem__(self, k: int) -> Batch:
        """Row k: tokens, segments (from 1, 0 = padding) and positions, int32 [row_length] each."""
        tokens, segments, positions = (
            np.zeros(self.plan.row_length, dtype=np.int32) for _ in range(3)
        )
        pieces = self.plan.row(k)
        documents = self.corpus.tokens([document for document, _, _ in pieces])
        place = 0
        for number, (document, (_, start, length)) in enumerate(
            zip(documents, pieces, strict=True)
        ):
            here = slice(place, place + length)
            tokens[here] = self._piece(document, start, length)
            segments[here] = number + 1
            positions[here] = np.arange(length)
            place += length
        return {"tokens": tokens, "segments": segments, "positions": positions}

    def _piece(self, document: np.ndarray, start: int, length: int) -> np.ndarray:
        """Some tokens of a document, from its start token, -1, to its end token, len(document)."""
        edges = self.plan.edge_tokens
        before = np.full(int(start < 0), edges.start or 0, np.int32)
        after = np.full(int(start + length > len(document)), edges.end or 0, np.int32)
        return np.concatenate([before, document[max(start, 0) : start + length], after])


class Batches:
    """Endless batches of one row plan, or one machine's share if several take them in turn.

    Args:
      turn: (k, n): batches k, k + n, k + 2 n, ... of them all.
    """

    def __init__(
        self,
        corpus: TokenReader,
        plan: RowPlan,
        batch_size: int,
        seed: int,
        turn: tuple[int, int] = (0, 1),
    ):
        import grain

        assert plan.num_rows > 0, "the caller raises EmptyShard for an empty plan"
        self.batch_size = batch_size
        own = () if turn == (0, 1) else turn
        self.fingerprint = digest_of(
            FORMAT_VERSION, corpus.digest, plan.digest(), seed, batch_size, *own
        )
        self.rows = Rows(corpus, plan)
        source: Any = self.rows  # Grain names the arguments of its methods otherwise.
        rows = grain.MapDataset.source(source).seed(seed % 2**32).shuffle().repeat()
        # Endless: of batches of one row Grain would count one too many for an index.
        batches = rows.batch(batch_size, drop_remainder=True)
        self._dataset: Any = batches[turn[0] :: turn[1]] if turn != (0, 1) else batches

    def at(self, step: int) -> Batch:
        """Batch number `step`: tokens, segments and positions, int32 [B, T] each."""
        return self._dataset[step]

    def iterate(self, start_step: int, num_steps: int) -> Iterator[Batch]:
        """Batches start_step, start_step + 1, ..., read ahead in one thread."""
        import grain

        options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=READ_AHEAD)
        batches = self._dataset[start_step : start_step + num_steps].to_iter_dataset(options)
        iterator = iter(batches)
        try:
            yield from iterator
        finally:
            iterator.close()
