"""What a block of steps gets from the host: tokens and draws each time, settings when rows change.

A block of a small model costs as much beside its steps as some of them, and copying small arrays to
the device is a part of that: so those that stay the same while the rows do stay there.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from dipaco.serving.decoding.batch_row import BatchRow
from dipaco.serving.decoding.block_plan import BlockPlan
from dipaco.serving.decoding.sampling import (
    NO_ID,
    NUM_UNIFORMS,
    EarliestStop,
    SamplingSettings,
    stack_settings,
    stack_stops,
)


class RowInputs:
    """The arguments of `decode.decode_block` that depend on which rows there are, on the device."""

    def __init__(self):
        self.drop()

    def drop(self) -> None:
        """Frees them, which may be the results of a program that failed."""
        self._of: tuple[int, list[int]] | None = None  # rows with padding; numbers of rows
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
        """By name; of rows with a grammar they change with every block.

        Args:
          rows: of the block.
          num_rows: padding included: greedy rows of one token.
          spare: the row of the pool that padding writes to.
          tokens_W: the ids that are tokens, as `Grammars.tokens_W`.
          device: of the pool.
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
    """The other arguments of `decode.decode_block`, by name, as NumPy arrays; padded to the rows of
    the plan with rows of one token.
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
    """The masks of the rows' grammars; each row notes which one it draws with."""
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
    # As an int32: a request may ask for more tokens than any context holds.
    shortest = min(len(request.prompt_ids) + request.min_new_tokens, NO_ID)
    return EarliestStop(request.stop_ids, shortest)
