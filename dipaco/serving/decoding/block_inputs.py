"""The host's inputs to a block of steps: tokens and draws each time, settings when rows change.

A row without a grammar draws one token in each step. With a grammar each token that is drawn must
be known before the next one's mask is, but most tokens are not drawn: the grammar allows one only.
Such tokens pass the steps unchanged, and one is drawn.

Then the row draws ahead, from the same mask, for as many steps as the block has. On the host its
grammar takes those tokens for which the mask was right, and the next block draws the others again,
with the same random numbers: the text does not depend on it. Within a string most tokens leave the
mask unchanged. If the last one did, the block has the steps for more.

A block of a small model costs as much beside its steps as some of its steps do. Copying small
arrays to the device is a part of this cost, so arrays that do not change stay there while the rows
stay.
"""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from dipaco.serving.decoding.batch_row import BatchRow
from dipaco.serving.decoding.decode import DRAWN, RESTS
from dipaco.serving.decoding.grammar import GrammarState
from dipaco.serving.decoding.sampling import (
    NO_ID,
    NUM_UNIFORMS,
    EarliestStop,
    SamplingSettings,
    stack_settings,
    stack_stops,
)

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
    """Decides how many steps a block has, and which tokens are given.

    Args:
      grammars: one for each row, None for a row without a grammar.
      num_rows: rows, padding included.
      most_steps: n.
    """
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
          device: the pool's.
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
