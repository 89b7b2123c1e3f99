"""Times of a block of steps by its shape, measured at the start of a server.

Rows of several paths are faster together on one machine and one path after the other on another: 64
rows of a 2x2 of the quickstart's size take 0.75 of the time together on one CPU (Intel), and 1.25
on another (AMD). A block of one shape takes the same time for any content, so each is run a few
times.

Every tile gets a different module then, as it has in use: one module in all of them would be read
from the processor's cache. Modules larger than that cache are not copied, since they are read from
memory anyway.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp

from dipaco import trees
from dipaco.model.config import ModelConfig, part_parameters
from dipaco.model.spec import Parts
from dipaco.serving.decoding.tiles import LevelShape, StepShape, tile_shape

CACHE_BYTES = 128 << 20  # more than a processor's cache holds
MOST_COPIES = 8
ROUNDS = 3
MOST_SECONDS = 3.0  # after which no other round begins

# So many columns have products that take as long as reading the parameters. Of 8 layers of 128 x
# 512 in float32 (AVX-512, two cores): the products of 64 columns with one set of weights take 1.7
# ms, of 8 each with eight 4.7 ms, of 4 each with sixteen 7.5 ms, of one each with sixty-four 19 to
# 23 ms.
COLUMNS_LIKE_READING = 16
BESIDES_PRODUCTS = 0.5  # time of a step besides its products
# A tile's products against those of a separate program. 64 rows of four paths, a 2x2, 32 tokens
# each, take 0.208 s of CPU time one after the other and 0.156 s together (0.84 M parameters a
# path), and 1.338 and 1.021 s (8.4 M).
TILE_OVERHEAD = 1.2

Rows = int | StepShape  # rows of one path, padding included, or of several


class BlockShape(NamedTuple):
    """The properties of a block that decide its time."""

    rows: Rows
    slots: int  # slots of the cache that each row attends to


class StepTimes(Protocol):
    """Compares blocks, in any unit."""

    def of(self, block: BlockShape) -> float: ...


class EstimatedTimes:
    """Estimates in units of reading the parameters of a path. The cache is left out. It serves a
    loop that was not warmed up.
    """

    def __init__(self, config: ModelConfig, levels: Sequence[LevelShape]):
        sizes = part_parameters(config)
        self._shares = [
            (level, sum(sizes[part] for part in level.parts) / sum(sizes.values()))
            for level in levels
        ]

    def of(self, block: BlockShape) -> float:
        if isinstance(block.rows, int):
            return BESIDES_PRODUCTS + _products(block.rows)
        shapes = [(share, *tile_shape(level, block.rows)) for level, share in self._shares]
        return BESIDES_PRODUCTS + TILE_OVERHEAD * sum(
            share * num_tiles * _products(columns) for share, num_tiles, columns in shapes
        )


class MeasuredTimes:
    """Times in seconds of blocks with the fewest and with the most slots. Times between them follow
    a line.
    """

    def __init__(self, seconds: Mapping[BlockShape, float]):
        self.seconds = seconds
        slots = [block.slots for block in seconds]
        self._fewest, self._most = min(slots), max(slots)

    def of(self, block: BlockShape) -> float:
        fewest = self.seconds[BlockShape(block.rows, self._fewest)]
        if self._most == self._fewest:
            return fewest
        share = (block.slots - self._fewest) / (self._most - self._fewest)
        return fewest + share * (self.seconds[BlockShape(block.rows, self._most)] - fewest)


def distinct_copies(prepared: Parts) -> list[Parts]:
    """The parameters of a path and copies of them, as many as make a cache overflow."""
    number = min(MOST_COPIES, CACHE_BYTES // trees.num_bytes(prepared))
    return [prepared, *(jax.tree.map(jnp.copy, prepared) for _ in range(number - 1))]


def measure(
    blocks: Mapping[BlockShape, Sequence[Callable[[], object]]], wait: Callable[[], object]
) -> MeasuredTimes:
    """Seconds of one block of each kind, the least of a few rounds.

    Args:
      blocks: of each kind some that are started one after the other, as a loop does.
      wait: waits until the device has finished what was started.
    """
    seconds: dict[BlockShape, float] = {}
    for starts in blocks.values():
        starts[0]()  # compiles programs that are not compiled yet
        wait()
    began = time.perf_counter()
    for each in range(ROUNDS):
        if each and time.perf_counter() - began > MOST_SECONDS:
            break
        for block, starts in blocks.items():
            starts[0]()  # gathers what the next ones need
            wait()
            started = time.perf_counter()
            for start in starts:
                start()
            wait()
            taken = (time.perf_counter() - started) / len(starts)
            seconds[block] = min(taken, seconds.get(block, taken))
    return MeasuredTimes(seconds)


def _products(columns: int) -> float:
    """Time of the products with the parameters of a path, in units of reading these."""
    return 1 + columns / COLUMNS_LIKE_READING
