"""One step for rows of several paths: products by module, everything else for all rows at once.

Rows of one path share every module, rows of two paths some of them or none. So each level has its
own order of the rows: sorted by module and cut into *tiles*, each of which is C columns that pass
one module. A step takes the columns of a tile through its module's kernels. Attention, which has no
kernel, is over all rows in their order in the batch, and so is the cache. Between two levels the
columns change places.

The modules of the tiles are separate arguments of the program, where nothing is copied and a module
is held once, or lie in one stack, whose products are batched: one operation for all tiles, and a
copy of the modules. Either way any choice of modules fits the same program. (Where the program
takes slices of a stack it is 5 to 10 times slower: jax 0.10 on CPU.) Tiles without a row are
computed like the others: skipping them by `lax.cond` costs more than it saves (64 rows of an 8x8
grid, 0.84 M parameters a path: 15 tiles of which 8 have rows take 6.0 ms a step with the others
skipped, 5.7 without, and 8 tiles 4.7).
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dipaco.model import inference
from dipaco.model.config import ModelConfig, block_names
from dipaco.model.inference import Blocks
from dipaco.model.spec import Parts


class ModuleStack(NamedTuple):
    """The modules of T tiles, side by side."""

    parts: Parts  # a module's arrays, each with a first axis: [T, ...]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LevelTiles:
    """The rows of a step, by the modules of one level: T tiles of C columns."""

    # The prepared module of each tile. A module may have several tiles.
    modules: tuple[Parts, ...] | ModuleStack
    rows_TC: Any  # int32: the row of each column, or any row if the column has none
    places_B: Any  # int32: the column of each row, t C + c

    @property
    def is_whole(self) -> bool:
        """True if one module has all rows, in their order in the batch."""
        return self.rows_TC.shape == (1, len(self.places_B))

    @property
    def parts(self) -> Parts:
        """Parts of the first module, or of all modules in their stack."""
        return self.modules.parts if isinstance(self.modules, ModuleStack) else self.modules[0]


class MixedParts(NamedTuple):
    """The levels of a step. Each part of the model is in the modules of one level."""

    levels: tuple[LevelTiles, ...]

    def level_of(self, part: str) -> LevelTiles:
        return next(level for level in self.levels if part in level.parts)

    @property
    def features_axis(self) -> int:
        """The features' axis (`inference.features_axis`)."""
        return inference.features_axis(self.level_of("block_00").parts)


def extend(
    config: ModelConfig, mixed: MixedParts, tokens_B: jax.Array, starts_B: jax.Array, blocks: Blocks
) -> tuple[jax.Array, dict[str, Any]]:
    """Runs one more token of each row through the blocks, as `inference.extend` for each path.

    Args:
      config: static under `jax.jit`.
      mixed: the modules that each row passes.
      tokens_B: int32 token ids.
      starts_B: int32, positions of the tokens.
      blocks: the cache, in the order of the rows, with a free slot for the token.

    Returns:
      Hidden states for `logits`: float32, before the final norm, in the tiles of the last block.
      And the cache with the token in it.
    """
    axis, seen = mixed.features_axis, inference.seen_slots(config, starts_B, 1, blocks)
    level = mixed.level_of("embed")
    x = _joined(
        axis,
        _each_tile(
            level,
            lambda module, tokens_C: inference.embed(module["embed"], tokens_C, axis),
            _of_rows(level, tokens_B),
        ),
    )
    after = {}
    for name in block_names(config):
        x, level = _to_level(axis, x, level, mixed.level_of(name))
        units = _tiles_of(axis, level, inference.unit(config, x, axis))
        joined = _each_tile(level, _of_part(inference.queries_keys_values, config, name), units)
        joined_BMK = _to_rows(level, joined)
        y_BM, after[name] = inference.attend_cached(
            config, joined_BMK[:, None], starts_B, seen, blocks[name]
        )
        attended = _each_tile(
            level,
            lambda module, y_CM, name=name: inference.attention_output(
                config, module[name], y_CM if axis else y_CM.T
            ),
            _of_rows(level, y_BM),
        )
        x += _joined(axis, attended)
        units = _tiles_of(axis, level, inference.unit(config, x, axis))
        x += _joined(axis, _each_tile(level, _of_part(inference.feed_forward, config, name), units))
    return x, after


def logits(config: ModelConfig, mixed: MixedParts, x: jax.Array) -> jax.Array:
    """float32 [B, V]: logits of each row's next token, from the hidden states of `extend`."""
    axis, last = mixed.features_axis, mixed.level_of(block_names(config)[-1])
    x, level = _to_level(axis, x, last, mixed.level_of("final_norm"))
    x = _joined(
        axis,
        _each_tile(
            level,
            lambda module, unit_x: inference.scaled(module["final_norm"]["scale"], unit_x, axis),
            _tiles_of(axis, level, inference.unit(config, x, axis)),
        ),
    )
    head = "embed" if config.tied_head else "head"
    x, level = _to_level(axis, x, level, mixed.level_of(head))
    tiles = _each_tile(
        level,
        lambda module, x: inference.head(config, module[head], x, axis),
        _tiles_of(axis, level, x),
    )
    return inference.as_rows(_ordered_as_rows(axis, level, _joined(axis, tiles)), axis)


def _of_part(function: Callable, config: ModelConfig, part: str) -> Callable:
    return lambda module, *inputs: function(config, module[part], *inputs)


# Values of each tile are T arrays, or one [T, ...] where the modules are in a stack.
Tiles = Sequence[jax.Array] | jax.Array


def _each_tile(level: LevelTiles, function: Callable, tiles: Tiles) -> Tiles:
    """function(module, values) of each tile."""
    if isinstance(level.modules, ModuleStack):
        return jax.vmap(function)(level.modules.parts, tiles)
    return [function(module, own) for module, own in zip(level.modules, tiles, strict=True)]


def _of_rows(level: LevelTiles, values_B: jax.Array) -> Tiles:
    """Values of each row [B, ...] -> of each tile's columns [C, ...]."""
    if level.is_whole:
        return [values_B]
    if isinstance(level.modules, ModuleStack):
        return values_B[level.rows_TC]
    return [values_B[rows_C] for rows_C in level.rows_TC]


def _to_rows(level: LevelTiles, tiles: Tiles) -> jax.Array:
    """Values of each tile's columns [C, ...] -> of each row [B, ...]."""
    if level.is_whole:
        return tiles[0]
    return jnp.concatenate(tiles)[level.places_B]


# x is [N, M] or [M, N], as in `inference`. `axis` is the axis of its M features.


def _joined(axis: int, tiles: Tiles) -> jax.Array:
    """C tokens of each tile, in the layout of x -> x, with N = T C."""
    return tiles[0] if len(tiles) == 1 else jnp.concatenate(tiles, axis=1 - axis)


def _tiles_of(axis: int, level: LevelTiles, x: jax.Array) -> Tiles:
    """x -> C tokens of each tile, in the layout of x."""
    if not isinstance(level.modules, ModuleStack):
        return jnp.split(x, len(level.modules), axis=1 - axis)
    num_tiles = len(level.rows_TC)
    if axis:
        return x.reshape(num_tiles, -1, x.shape[1])
    return x.reshape(len(x), num_tiles, -1).swapaxes(0, 1)


def _ordered_as_rows(axis: int, level: LevelTiles, x: jax.Array) -> jax.Array:
    """The tokens of a level's tiles in the order of the rows, with N = B."""
    return x if level.is_whole else jnp.take(x, level.places_B, axis=1 - axis)


def _to_level(
    axis: int, x: jax.Array, level: LevelTiles, other: LevelTiles
) -> tuple[jax.Array, LevelTiles]:
    """The token of each row, in the order of another level."""
    if other is level:
        return x, level
    if other.is_whole:
        return _ordered_as_rows(axis, level, x), other
    rows_N = jnp.reshape(other.rows_TC, -1)
    places_N = rows_N if level.is_whole else jnp.take(level.places_B, rows_N)
    return jnp.take(x, places_N, axis=1 - axis), other
