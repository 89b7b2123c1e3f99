"""Estimates of the time that a block of steps takes, by its shape."""

from collections.abc import Sequence
from typing import NamedTuple

import jax

from dipaco.model.config import ModelConfig, part_parameters
from dipaco.serving.decoding.tiles import LevelShape, StepShape, tile_shape

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


class StepTimes:
    """Times in units of reading the parameters of a path."""

    def __init__(self, config: ModelConfig, levels: Sequence[LevelShape]):
        sizes = part_parameters(config)
        total = sum(sizes.values())
        self._slot = 2 * config.num_layers * config.kv_heads * config.head_size / total
        self._shares = [
            (level, sum(sizes[part] for part in level.parts) / total) for level in levels
        ]

    def of(self, block: BlockShape) -> float:
        """An accelerator has room for all products at once: a step takes as long for any rows."""
        if jax.default_backend() != "cpu":
            return 1.0
        if isinstance(block.rows, int):
            return BESIDES_PRODUCTS + _products(block.rows) + block.rows * block.slots * self._slot
        cache = block.rows.num_rows * block.slots * self._slot
        shapes = [(share, *tile_shape(level, block.rows)) for level, share in self._shares]
        products = (share * num_tiles * _products(columns) for share, num_tiles, columns in shapes)
        return BESIDES_PRODUCTS + TILE_OVERHEAD * sum(products) + cache


def _products(columns: int) -> float:
    """Time of the products with the parameters of a path, in units of reading these."""
    return 1 + columns / COLUMNS_LIKE_READING
