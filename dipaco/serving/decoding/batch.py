"""The active rows of a path, of several: the inputs of a block of steps, and what it made."""

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from dipaco.model.spec import Parts
from dipaco.serving.decoding.block_plan import BlockPlan
from dipaco.serving.decoding.decode import DecodeBlock
from dipaco.serving.decoding.grammar import Grammars, GrammarState, all_allowed
from dipaco.serving.decoding.sampling import NO_ID, EarliestStop, SamplingSettings, stack_settings
from dipaco.serving.decoding.stream import Finish, Stream, Token
from dipaco.serving.errors import GrammarFailed


@dataclasses.dataclass(eq=False)
class BatchRow:
    """One active request."""

    stream: Stream
    pool_row: int  # its row of the cache pool
    tokens: list[int]  # prompt and continuation
    max_tokens: int  # both together, at most; then it ends
    uniforms: np.ndarray  # float32 [more than max_tokens]; for its draws, by position
    grammar: GrammarState | None = None  # of what it makes
    mask_number: int = 0  # of the mask with which its block draws

    def takes(self, token: Token) -> bool:
        """Whether a token of its block is as it is drawn one by one: else its grammar's mask has
        changed since the block began, and it is drawn again.
        """
        return self.grammar is None or self.grammar.knows(token.id, self.mask_number)

    def add(self, token: Token) -> Finish | None:
        """Puts one token into the stream; returns the end where this was the last."""
        self.tokens.append(token.id)
        self.stream.put(token)
        if token.id in self.stream.request.stop_ids:
            return Finish("stop")
        if self.grammar is not None:
            try:
                self.grammar.add(token.id)
            except GrammarFailed as error:
                return Finish("error", error)
            if self.grammar.is_complete:
                return Finish("stop")
        return Finish("length") if len(self.tokens) >= self.max_tokens else None


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
        """Whether these very rows are in it, and all their tokens: some may have been made in
        another step, with other rows.
        """
        return self._held == (*shape, [(row, len(row.tokens)) for row in rows])

    def take_back(self, row: BatchRow) -> None:
        """Says that a row did not take all of its block's tokens: those are made again."""
        if self._held is not None:
            num_rows, slots, held = self._held
            rows = [(own, len(own.tokens) if own is row else length) for own, length in held]
            self._held = num_rows, slots, rows

    def drop(self) -> None:
        """Frees it; the pool has it all."""
        self.cache = self._held = None

    @property
    def num_slots(self) -> int:
        """Of all its rows together, padding included."""
        return 0 if self._held is None else self._held[0] * self._held[1]


class Batch:
    """The active rows of one path, and its parameters while there are any."""

    def __init__(self, prepared: Parts, pinned: contextlib.ExitStack | None = None):
        self.prepared = prepared
        self.rows: list[BatchRow] = []
        self.gathered = GatheredRows()
        self._pinned = pinned or contextlib.ExitStack()

    def close(self) -> None:
        """Unpins the parameters."""
        self.gathered.drop()
        self._pinned.close()


def block_inputs(
    rows: Sequence[BatchRow],
    plan: BlockPlan,
    slots: int,
    spare: int,
    vocab_size: int,
) -> dict[str, Any]:
    """The arguments of `decode.decode_block` for these rows, by name, as NumPy arrays.

    Padded to the rows of the plan with the spare row of the pool, greedy and one token long.
    """
    num_steps, num_rows = plan.given_nB.shape
    allowed_BW = all_allowed(num_rows, vocab_size)
    for index, row in enumerate(rows):
        if row.grammar is not None:
            allowed_BW[index] = row.grammar.allowed_W
            row.mask_number = row.grammar.mask_number
    num_spare = num_rows - len(rows)
    history_BS = np.zeros((num_rows, slots), np.int32)
    uniforms_nB = np.zeros((num_steps, num_rows), np.float32)
    for index, row in enumerate(rows):
        uniforms_nB[:, index] = row.uniforms[len(row.tokens) :][:num_steps]
        history_BS[index, : len(row.tokens)] = row.tokens
    requests = [row.stream.request for row in rows]
    sampling = [request.sampling for request in requests] + [SamplingSettings()] * num_spare
    return {
        "rows_B": np.array([row.pool_row for row in rows] + [spare] * num_spare, np.int32),
        "history_BS": history_BS,
        "lengths_B": np.array([len(row.tokens) for row in rows] + [1] * num_spare, np.int32),
        "settings": stack_settings(
            sampling,
            [_earliest_stop(row) for row in rows],
            [request.num_given or len(request.prompt_ids) for request in requests],
            allowed_BW=allowed_BW,
        ),
        "uniforms_nB": uniforms_nB,
        "num_steps": np.int32(plan.num_steps),
        "given_nB": plan.given_nB,
        "wants_logprobs": np.array(any(row.num_logprobs is not None for row in requests)),
    }


def _earliest_stop(row: BatchRow) -> EarliestStop:
    request = row.stream.request
    if not request.min_new_tokens or (row.grammar is not None and row.grammar.must_stop):
        return EarliestStop()
    # As an int32: a request may ask for more tokens than any context holds.
    shortest = min(len(request.prompt_ids) + request.min_new_tokens, NO_ID)
    return EarliestStop(request.stop_ids, shortest)


def grammar_of(stream: Stream, grammars: Grammars | None) -> GrammarState | None:
    """Where a request is in its grammar; None = it has none. Raises `GrammarFailed`."""
    request = stream.request
    if request.schema is None:
        return None
    assert grammars is not None, "the sender of a schema gives the loop its grammars"
    num_given = request.num_given or len(request.prompt_ids)
    made_ids = [*request.prompt_ids, *stream.made_ids][num_given:]
    return grammars.begin(request.schema, made_ids, request.stop_ids)


def fetch_tokens(block: DecodeBlock) -> DecodeBlock:
    """The block with its tokens copied to the host, and nothing else of it."""
    return block._replace(token=jax.device_get(block.token))


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
