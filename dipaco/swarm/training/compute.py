"""The programs of a peer: the gradient of a block of rows, and the step that all peers take alike.

A gradient travels as one float32 vector, leaves in the order of their names.
"""

import dataclasses
import functools
import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from jax.flatten_util import ravel_pytree

from dipaco.inner.config import InnerSettings
from dipaco.inner.local_steps import floats_of, make_local_steps, moved
from dipaco.inner.optimizer import learning_rates, make_optimizer
from dipaco.inner.state import PathState, state_like
from dipaco.inner.step import make_gradient, make_update, path_loss
from dipaco.model.config import ModelConfig, num_parameters
from dipaco.model.loss import next_is_target
from dipaco.swarm.errors import BadMessage
from dipaco.swarm.network.messages import digest

CHUNK_BYTES = 1 << 20  # of a state
COLUMNS = ("tokens", "segments", "positions")


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupSettings:
    """Settings that all peers of a group must share."""

    model: ModelConfig
    inner: InnerSettings
    length: int  # tokens in a row
    block_rows: int  # rows in a block
    codec: str = "none"  # codec of gradients
    # Steps that the holder of a block takes with its rows before the group averages. 1 = the group
    # averages gradients. Otherwise a gradient below is a `Move`, and a block has rows of all steps.
    local_steps: int = 1
    schedule_steps: int = 0  # steps of the path's learning-rate schedule

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "GroupSettings":
        """Raises `BadMessage`."""
        try:
            return msgspec.convert(json.loads(text), type=cls)
        except (ValueError, msgspec.MsgspecError) as error:
            raise BadMessage(problem=f"the group's settings cannot be read: {error}") from error

    @property
    def digest(self) -> str:
        return digest(self.to_json().encode()).hex()

    @property
    def max_payload_bytes(self) -> int:
        """A limit for one message of this group, with room to spare. It covers float32 values of
        the whole model, with AdamW's state for a move, the rows of a batch, or a chunk of state.
        """
        values = num_parameters(self.model) * (1 if self.local_steps == 1 else 3)
        rows_values = len(COLUMNS) * self.inner.batch_size * self.local_steps * self.length
        return 4 * (values + rows_values) + 2 * CHUNK_BYTES

    @property
    def num_blocks(self) -> int:
        """Blocks of a step. The last may be shorter."""
        return -(-self.inner.batch_size // self.block_rows)

    @property
    def samples_in_block(self) -> int:
        """Rows in a block that is whole, of all its steps."""
        return self.block_rows * self.local_steps

    def rows_in(self, blocks: Sequence[int]) -> list[int]:
        """Rows in each of these blocks, of all its steps."""
        size, batch_rows = self.samples_in_block, self.inner.batch_size * self.local_steps
        return [min(size, batch_rows - block * size) for block in blocks]

    def joined(self, batches: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
        """The rows of so many steps, block by block. Where steps are missing, rows are padding."""
        missing = [{name: np.zeros_like(batches[0][name]) for name in COLUMNS}]
        steps, size = [*batches, *missing * (self.local_steps - len(batches))], self.block_rows
        starts = range(0, self.inner.batch_size, size)
        return {
            name: np.concatenate([one[name][at : at + size] for at in starts for one in steps])
            for name in COLUMNS
        }


class Compute:
    """The programs of one peer."""

    def __init__(self, settings: GroupSettings):
        self.settings = settings
        self._is_local, inner = settings.local_steps > 1, settings.inner
        loss = path_loss(settings.model, inner)
        gradient = make_local_steps(loss, inner) if self._is_local else make_gradient(loss)

        def flat_gradient(start, rows, *rates):
            tree, loss_sum, targets = gradient(start, rows, *rates)
            return ravel_pytree(tree)[0], loss_sum, targets

        self._gradient = jax.jit(flat_gradient)
        self._update = make_update(inner)
        self._moved = jax.jit(moved)
        self.add = jax.jit(jnp.add)
        self._warming, self._is_warm = threading.Lock(), False

    @functools.cached_property
    def state_like(self) -> PathState:
        """Shapes and types of a path's state."""
        return state_like(self.settings.model, make_optimizer(self.settings.inner))

    def start_of(self, state: PathState) -> Any:
        """What gradients are computed from: the parameters, or the whole state for local steps."""
        return state if self._is_local else state.parts

    @functools.cached_property
    def _gradient_like(self) -> Any:
        """Shapes and types of a gradient."""
        return floats_of(self.state_like) if self._is_local else self.state_like.parts

    @functools.cached_property
    def _unravel(self) -> Any:
        zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), self._gradient_like)
        return ravel_pytree(zeros)[1]

    @functools.cached_property
    def num_values(self) -> int:
        """Length of a gradient."""
        return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(self._gradient_like))

    def warm_up(self) -> None:
        """Compiles, so that the first block takes no longer than others."""
        with self._warming:
            if self._is_warm:
                return
            shape = self.settings.samples_in_block, self.settings.length
            zeros = functools.partial(jax.tree.map, lambda leaf: np.zeros(leaf.shape, leaf.dtype))
            state = zeros(self.state_like)
            rows = {name: np.zeros(shape, np.int32) for name in COLUMNS}
            vector, _, _ = self.gradient(self.start_of(state), rows, 0)
            self.add(vector, vector)
            self.step(state, np.asarray(vector), 0.0, 1)
            self._is_warm = True

    def gradient(
        self, start: Any, rows: Mapping[str, np.ndarray], step: int
    ) -> tuple[Any, float, float]:
        """Gradient of a block's summed loss (float32 [values], on the device), that loss in nats,
        and the block's targets. `step`: the first that the rows are of.
        """
        rates: tuple[np.ndarray, ...] = ()
        if self._is_local:
            steps = self.settings.local_steps
            rates = (
                learning_rates(self.settings.inner, self.settings.schedule_steps, step, steps),
            )
            rows = {name: of.reshape(steps, -1, of.shape[-1]) for name, of in rows.items()}
        vector, loss_sum, targets = self._gradient(start, rows, *rates)
        jax.block_until_ready(vector)
        return vector, float(loss_sum), float(targets)

    def step(
        self, state: PathState, mean: np.ndarray, learning_rate: float, steps: int
    ) -> PathState:
        """The state after the group's step, from the mean gradient per target, or after so many
        local steps, from the mean move.
        """
        gradient = self._unravel(jnp.asarray(mean))
        if self._is_local:
            return jax.block_until_ready(self._moved(state, gradient, steps))
        return jax.block_until_ready(self._update(state, gradient, jnp.float32(learning_rate)))

    def is_finite(self, state: PathState) -> bool:
        """True if no parameter is a NaN or an infinity."""
        return all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(state.parts))

    def rows_of(self, batch: Mapping[str, np.ndarray], block: int) -> dict[str, np.ndarray]:
        """The rows of one block of a step's batch."""
        size = self.settings.samples_in_block
        return {
            name: np.asarray(batch[name][block * size : (block + 1) * size]) for name in COLUMNS
        }

    def targets_of_blocks(self, batch: Mapping[str, np.ndarray]) -> tuple[float, ...]:
        """The targets of each block of a step's batch."""
        of_rows = np.asarray(next_is_target(jnp.asarray(batch["segments"]))).sum(axis=1)
        starts = np.arange(0, len(of_rows), self.settings.samples_in_block)
        return tuple(map(float, np.add.reduceat(of_rows, starts)))


def pack_rows(blocks: list[dict[str, np.ndarray]]) -> bytes:
    """Rows of several blocks as the payload of a message."""
    return b"".join(
        np.ascontiguousarray(block[name], "<i4").tobytes() for block in blocks for name in COLUMNS
    )


def unpack_rows(content: bytes, rows_in_blocks: list[int], length: int) -> list[dict]:
    """The inverse. Raises `BadMessage` if the sizes do not fit."""
    if len(content) != sum(rows_in_blocks) * length * 4 * len(COLUMNS):
        raise BadMessage(problem=f"{len(content)} bytes of rows do not fit the blocks")
    values, offset, blocks = np.frombuffer(content, "<i4"), 0, []
    for rows in rows_in_blocks:
        block = {}
        for name in COLUMNS:
            block[name] = values[offset : offset + rows * length].reshape(rows, length)
            offset += rows * length
        blocks.append(block)
    return blocks
