"""The rows of one path that are alive: what a block of steps is told, and what it made of them."""

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from dipaco.model.spec import Parts
from dipaco.serving.decoding.decode import DecodeBlock
from dipaco.serving.decoding.sampling import SamplingSettings, stack_settings
from dipaco.serving.decoding.stream import Finish, Stream, Token


@dataclasses.dataclass
class BatchRow:
    """One request that is being answered."""

    stream: Stream
    place: int  # its row of the pool
    tokens: list[int]  # prompt and continuation
    most_tokens: int  # together; then it ends
    uniforms: np.ndarray  # float32 [more than most_tokens]; with what it draws, by position

    def take(self, token: Token) -> Finish | None:
        """Hands on one token; the end, where this was the last."""
        self.tokens.append(token.id)
        self.stream.put(token)
        if token.id in self.stream.request.stop_ids:
            return Finish("stop")
        return Finish("length") if len(self.tokens) >= self.most_tokens else None


class Batch:
    """The rows of one path, and its parameters as long as there are any."""

    def __init__(self, prepared: Parts, pinned: contextlib.ExitStack | None = None):
        self.prepared = prepared
        self.rows: list[BatchRow] = []
        # What was taken from the pool for the last block, and for whom: (places, slots).
        self.taken: Any = None
        self.taken_for: tuple[list[int], int] | None = None
        self._pinned = pinned or contextlib.ExitStack()

    def enter(self, row: BatchRow) -> None:
        """One row more, perhaps in the place of one that has left: what was taken is that one's."""
        self.rows.append(row)
        self.taken = self.taken_for = None

    def close(self) -> None:
        """Lets go of the parameters."""
        self.taken = self.taken_for = None
        self._pinned.close()


def block_inputs(
    rows: Sequence[BatchRow], num_rows: int, slots: int, num_steps: int, spare: int
) -> dict[str, Any]:
    """What `decode.advance` is told of the rows: NumPy arrays, by the names of its arguments.

    Padded to `num_rows` with the spare row of the pool, greedy and one token long.
    """
    num_spare = num_rows - len(rows)
    history_BS = np.zeros((num_rows, slots), np.int32)
    uniforms_nB = np.zeros((num_steps, num_rows), np.float32)
    for index, row in enumerate(rows):
        uniforms_nB[:, index] = row.uniforms[len(row.tokens) :][:num_steps]
        history_BS[index, : len(row.tokens)] = row.tokens
    requests = [row.stream.request for row in rows]
    sampling = [request.sampling for request in requests] + [SamplingSettings()] * num_spare
    return {
        "rows_B": np.array([row.place for row in rows] + [spare] * num_spare, np.int32),
        "history_BS": history_BS,
        "lengths_B": np.array([len(row.tokens) for row in rows] + [1] * num_spare, np.int32),
        "settings": stack_settings(sampling),
        "uniforms_nB": uniforms_nB,
        "wants_logprobs": np.array(any(row.num_logprobs is not None for row in requests)),
    }


def only_tokens(made: DecodeBlock) -> DecodeBlock:
    """A block whose tokens were fetched, and nothing else of it."""
    return made._replace(token=jax.device_get(made.token))


def tokens_of(made: DecodeBlock, row: int, num_logprobs: int | None) -> list[Token]:
    """One row's tokens of a block that was fetched, with as many log-probabilities as it wants."""
    ids = made.token[:, row].tolist()
    if num_logprobs is None:
        return [Token(id) for id in ids]
    logprobs = made.logprob[:, row].tolist()
    top_ids = made.top_token[:, row, :num_logprobs].tolist()
    top_logprobs = made.top_logprob[:, row, :num_logprobs].tolist()
    return [
        Token(id, logprob, tuple(zip(*top, strict=True)))
        for id, logprob, *top in zip(ids, logprobs, top_ids, top_logprobs, strict=True)
    ]
