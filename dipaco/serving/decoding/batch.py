"""The active rows of a path, the arguments of a block of steps for them, and the tokens it made.

A row with a grammar needs each token that is drawn before the next one's mask. But most tokens are
not drawn: the grammar allows one only. These pass the steps unchanged, and one is drawn. Then the
row draws ahead, from the same mask, for as many steps as the block has. On the host its grammar
takes the tokens for which the mask was right. The next block draws the others again, with the same
random numbers: the text does not depend on it. Arrays that do not change stay on the device.
"""

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from dipaco.model.spec import Parts
from dipaco.serving.decoding.decode import DRAWN, RESTS, DecodeBlock
from dipaco.serving.decoding.grammar import Grammars, GrammarState
from dipaco.serving.decoding.request_queue import Finish, Stream, Token
from dipaco.serving.decoding.sampling import (
    NO_ID,
    NUM_UNIFORMS,
    EarliestStop,
    SamplingSettings,
    stack_settings,
    stack_stops,
)
from dipaco.serving.errors import GrammarFailed


@dataclasses.dataclass(eq=False)
class BatchRow:
    """One active request."""

    stream: Stream
    pool_row: int  # its row of the cache pool
    tokens: list[int]  # prompt and continuation
    max_tokens: int  # at most, both together
    uniforms: np.ndarray  # float32 [more than max_tokens, 2]: its draws, by position
    grammar: GrammarState | None = None  # state of the text that it makes
    mask_number: int = 0  # number of the mask with which its block draws
    num_unread: int = 1  # last tokens that are not in the cache
    number: int = dataclasses.field(default_factory=itertools.count().__next__)  # no other has it

    def put(self, tokens: Sequence[Token]) -> tuple[int, Finish | None]:
        """Puts tokens of its block into the stream, up to its end or to one that is drawn again,
        and the rest of the text if its grammar knows it all. Returns their number, and the end.
        """
        taken, finish = [], None
        try:
            for token in itertools.chain(itertools.takewhile(self.takes, tokens), self._rest()):
                taken.append(token)
                if finish := self.add(token):
                    break
        finally:  # the tokens so far, even if a later one failed
            if taken:
                self.stream.put(taken)
        return len(taken), finish

    def takes(self, token: Token) -> bool:
        """True if a token of its block equals the one that is drawn alone. Otherwise its grammar's
        mask has changed since the block began, and the token is drawn again.
        """
        return self.grammar is None or self.grammar.knows(token.id, self.mask_number)

    def _rest(self) -> Iterator[Token]:
        """The only tokens that may come until the text is over: no step need read them."""
        if self.grammar is None or self.stream.request.num_logprobs is not None:
            return
        while self.grammar.is_over and self.grammar.forced:
            self.num_unread += 1
            yield Token(self.grammar.forced[0])

    def add(self, token: Token) -> Finish | None:
        """Returns the end where this token was the last."""
        self.tokens.append(token.id)
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


# Steps that take as long as what a block costs beside its steps. Measured: 0.3 with 8.4 M
# parameters, 2 to 3 with 0.84 M. Between them little depends on it.
BLOCK_AS_STEPS = 1.0


class BlockPlan(NamedTuple):
    """A block of steps for some rows."""

    given_nB: np.ndarray  # int32, for `decode_block`, padding included
    num_steps: int  # steps of the block, 1 to n
    num_tokens: list[int]  # tokens that each row makes, taken or not, padding left out


def plan_block(
    grammars: Sequence[GrammarState | None], num_rows: int, most_steps: int
) -> BlockPlan:
    """Decides how many of n steps a block has, and which tokens are given."""
    given_nB = np.full((most_steps, num_rows), DRAWN, np.int32)
    given_nB[:, len(grammars) :] = RESTS  # else each step would draw for padding
    expected = [most_steps] * len(grammars)  # tokens that are likely taken
    num_tokens = [most_steps] * len(grammars)
    for row, grammar in enumerate(grammars):
        if grammar is not None:
            forced = list(itertools.islice(grammar.forced, most_steps))
            given_nB[: len(forced), row] = forced
            if grammar.is_over:
                given_nB[len(forced) :, row] = RESTS
                expected[row] = num_tokens[row] = len(forced)
            elif forced or not grammar.is_steady:
                expected[row] = min(len(forced) + 1, most_steps)
    with_grammar = [most for most, one in zip(expected, grammars, strict=True) if one is not None]
    num_steps = max(with_grammar, default=most_steps)
    if with_grammar:
        num_steps = max(
            range(1, num_steps + 1), key=lambda steps: _tokens_for_time(expected, steps)
        )
    return BlockPlan(given_nB, num_steps, [min(most, num_steps) for most in num_tokens])


def _tokens_for_time(num_tokens: Sequence[int], num_steps: int) -> float:
    """Rows that rest cost as much as others."""
    return sum(min(most, num_steps) for most in num_tokens) / (BLOCK_AS_STEPS + num_steps)


class RowInputs:
    """The arguments of `decode.decode_block` that depend on which rows there are, on the device."""

    def __init__(self):
        self.drop()

    def drop(self) -> None:
        """Frees them, which may be the results of a program that failed."""
        # Rows with padding, and the numbers of the rows.
        self._of: tuple[int, list[int]] | None = None
        self._held: dict[str, Any] = {}

    def of(
        self,
        rows: Sequence[BatchRow],
        num_rows: int,
        *,
        spare: int,
        tokens_W: np.ndarray,
        device: jax.Device,
    ) -> dict[str, Any]:
        """The settings by name. Those of rows with a grammar change with every block.

        Args:
          num_rows: rows, padding included. Padding is a greedy row of one token.
          spare: the row of the pool that padding writes to.
          tokens_W: the ids that are tokens, as in `Grammars.tokens_W`.
        """
        these = num_rows, [row.number for row in rows]
        if self._of != these:
            inputs = _row_inputs(rows, num_rows, spare, tokens_W)
            with jax.default_device(device):
                self._of, self._held = these, _on_device(inputs)
        if all(row.grammar is None for row in rows):
            return self._held
        changed = {"allowed_BW": _allowed(rows, num_rows, tokens_W)}
        if any(row.stream.request.min_new_tokens for row in rows):
            stops = stack_stops([_earliest_stop(row) for row in rows], num_rows)
            changed |= zip(("stop_ids_BM", "shortest_B"), stops, strict=True)
        return self._held | {"settings": self._held["settings"]._replace(**changed)}


def block_inputs(rows: Sequence[BatchRow], plan: BlockPlan, slots: int) -> dict[str, Any]:
    """The other arguments of `decode.decode_block`, by name, as NumPy arrays. They are padded to
    the rows of the plan with rows of one token.
    """
    num_steps, num_rows = plan.given_nB.shape
    history_BS = np.zeros((num_rows, slots), np.int32)
    uniforms_nBU = np.zeros((num_steps, num_rows, NUM_UNIFORMS), np.float32)
    for index, row in enumerate(rows):
        uniforms_nBU[:, index] = row.uniforms[len(row.tokens) :][:num_steps]
        history_BS[index, : len(row.tokens)] = row.tokens
    num_spare = num_rows - len(rows)
    return {
        "history_BS": history_BS,
        "lengths_B": np.array([len(row.tokens) for row in rows] + [1] * num_spare, np.int32),
        "uniforms_nBU": uniforms_nBU,
        "num_steps": np.int32(plan.num_steps),
        "given_nB": plan.given_nB,
    }


@jax.jit
def _on_device(inputs: dict[str, Any]) -> dict[str, Any]:
    """A third of the time that `jax.device_put` takes, and not committed to the device, as an array
    of the host is not: so both fit one program.
    """
    return inputs


def _row_inputs(
    rows: Sequence[BatchRow], num_rows: int, spare: int, tokens_W: np.ndarray
) -> dict[str, Any]:
    num_spare = num_rows - len(rows)
    requests = [row.stream.request for row in rows]
    settings = stack_settings(
        [request.sampling for request in requests] + [SamplingSettings()] * num_spare,
        [_earliest_stop(row) for row in rows],
        [request.num_given or len(request.prompt_ids) for request in requests],
        allowed_BW=np.tile(tokens_W, (num_rows, 1)),
    )
    return {
        "rows_B": np.array([row.pool_row for row in rows] + [spare] * num_spare, np.int32),
        "settings": settings,
        "wants_logprobs": np.array(any(row.num_logprobs is not None for row in requests)),
    }


def _allowed(rows: Sequence[BatchRow], num_rows: int, tokens_W: np.ndarray) -> np.ndarray:
    """The masks of the rows' grammars. Each row notes which one it draws with."""
    allowed_BW = np.tile(tokens_W, (num_rows, 1))
    for index, row in enumerate(rows):
        if row.grammar is not None:
            allowed_BW[index] = row.grammar.allowed_W
            row.mask_number = row.grammar.mask_number
    return allowed_BW


def _earliest_stop(row: BatchRow) -> EarliestStop:
    request = row.stream.request
    if not request.min_new_tokens or (row.grammar is not None and row.grammar.must_stop):
        return EarliestStop()
    # The limit keeps it an int32: a request may ask for more tokens than any context holds.
    shortest = min(len(request.prompt_ids) + request.min_new_tokens, NO_ID)
    return EarliestStop(request.stop_ids, shortest)


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
        """True if it holds exactly these rows with all their tokens, wherever they were made."""
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
