"""The active rows of a path, and the tokens that a block of steps made for them."""

import contextlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from dipaco.model.spec import Parts
from dipaco.serving.decoding.batch_row import BatchRow
from dipaco.serving.decoding.block_inputs import RowInputs
from dipaco.serving.decoding.decode import DecodeBlock
from dipaco.serving.decoding.grammar import Grammars, GrammarState
from dipaco.serving.decoding.stream import Stream, Token


class GatheredRows:
    """The cache of some rows side by side, as the last block of just these rows left it."""

    def __init__(self):
        self.cache: Any = None
        self._held: tuple[int, int, list[tuple[BatchRow, int]]] | None = None

    def keep(
        self, cache: Any, shape: tuple[int, int], rows: Sequence[BatchRow], new: Sequence[int]
    ) -> None:
        """Keeps it, [rows and slots, padding included], until each row has so many new tokens."""
        self.cache = cache
        lengths = [len(row.tokens) + number for row, number in zip(rows, new, strict=True)]
        self._held = *shape, list(zip(rows, lengths, strict=True))

    def is_of(self, shape: tuple[int, int], rows: Sequence[BatchRow]) -> bool:
        """True if it holds exactly these rows with all their tokens. Some tokens may have been made
        in another step, with other rows.
        """
        return self._held == (*shape, [(row, len(row.tokens)) for row in rows])

    def take_back(self, row: BatchRow) -> None:
        """Says that a row did not take all of its block's tokens: those are made again."""
        if self._held is not None:
            num_rows, slots, held = self._held
            rows = [(each, len(each.tokens) if each is row else length) for each, length in held]
            self._held = num_rows, slots, rows

    def drop(self) -> None:
        """Frees it. The pool has all of its content."""
        self.cache = self._held = None

    @property
    def num_slots(self) -> int:
        """Slots of all its rows together, padding included."""
        return 0 if self._held is None else self._held[0] * self._held[1]


class StepMemory:
    """Arrays that the steps of some rows leave on the device for their next steps."""

    def __init__(self):
        self.gathered, self.inputs = GatheredRows(), RowInputs()

    def drop(self) -> None:
        """Frees it."""
        self.gathered.drop()
        self.inputs.drop()


class Batch:
    """The active rows of one path, and its parameters while there are any."""

    def __init__(self, prepared: Parts, pinned: contextlib.ExitStack | None = None):
        self.prepared = prepared
        self.rows: list[BatchRow] = []
        self.memory = StepMemory()
        self._pinned = pinned or contextlib.ExitStack()

    def close(self) -> None:
        """Unpins the parameters."""
        self.memory.drop()
        self._pinned.close()


def grammar_of(stream: Stream, grammars: Grammars | None) -> GrammarState | None:
    """The state of a request in its grammar. None = it has no grammar. Raises `GrammarFailed`."""
    request = stream.request
    if request.schema is None:
        return None
    assert grammars is not None, "the sender of a schema gives the loop its grammars"
    num_given = request.num_given or len(request.prompt_ids)
    made_ids = [*request.prompt_ids, *stream.made_ids][num_given:]
    return grammars.begin(request.schema, made_ids, request.stop_ids)


def fetched(block: DecodeBlock, rows: Sequence[BatchRow]) -> DecodeBlock:
    """The block with what its rows ask for copied to the host."""
    if any(row.stream.request.num_logprobs is not None for row in rows):
        return jax.device_get(block)
    return block._replace(token=np.asarray(block.token))  # sooner than `device_get`, for one array


def tokens_of(block: DecodeBlock, row: int, num_logprobs: int | None) -> list[Token]:
    """One row's tokens of a block on the host, with the log-probabilities it asked for."""
    ids = [token for token in block.token[:, row].tolist() if token >= 0]
    if num_logprobs is None:
        return [Token(id) for id in ids]
    made = len(ids)
    logprobs = block.logprob[:made, row].tolist()
    top_ids = block.top_token[:made, row, :num_logprobs].tolist()
    top_logprobs = block.top_logprob[:made, row, :num_logprobs].tolist()
    return [
        Token(id, logprob, tuple(zip(*top, strict=True)))
        for id, logprob, *top in zip(ids, logprobs, top_ids, top_logprobs, strict=True)
    ]
