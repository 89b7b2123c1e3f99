"""The tiles of a step for rows of several paths: `model.mixed` from the paths of the rows."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dipaco.model.kernels import tokens_are_rows
from dipaco.model.mixed import LevelTiles
from dipaco.model.spec import Parts

# Columns of a tile. Fewer than eight are no sooner: 64 rows of a 16x16 take 0.335 s of CPU time in
# tiles of four and 0.317 s in tiles of eight. Where every row has a module of its own, two: XLA:CPU
# compiles products of one column ten times as long.
LEAST_COLUMNS, LEAST_COLUMNS_ALONE = 8, 2
# Where tokens are rows, fewer are sooner: in tiles of four a step of 8 rows of a 4x4 takes 0.66 of
# the time, of 32 of a 16x16 0.84, of 64 in the tiles that hold any of its rows 0.91 (AMD). But rows
# are seldom even, and what does not fit is padded to the next size: eight tiles of four never held
# 32 rows drawn at random from an 8x8, eight of eight did five times in six. So four must be twice
# the even share, which holds such rows nine times in ten.
LEAST_COLUMNS_AS_ROWS, ROOM_AS_ROWS = 4, 2


class LevelShape(NamedTuple):
    """The parts of one level, and how many modules a release has for them."""

    parts: tuple[str, ...]
    num_modules: int


class StepShape(NamedTuple):
    """The shape of a step for several paths."""

    num_rows: int  # padding included
    is_uneven: bool  # with the tiles that any rows need, not those of evenly spread ones


def tile_shape(level: LevelShape, shape: StepShape) -> tuple[int, int]:
    """Tiles and columns of each that hold evenly spread rows of a level, or any rows."""
    num_rows = shape.num_rows
    if level.num_modules == 1:
        return 1, num_rows
    columns = max(_least_columns(level, shape), math.ceil(num_rows / level.num_modules))
    even = min(level.num_modules, num_rows)
    return even + (num_rows - even) // columns if shape.is_uneven else even, columns


def module_of(level: LevelShape, prepared: Parts) -> int:
    """Paths that share a module hold the same objects: `path_cache` copies nothing."""
    return id(prepared[level.parts[0]])


def tiles_of(level: LevelShape, paths: Sequence[Parts], shape: StepShape) -> LevelTiles:
    """The tiles of a level for a row of each of these paths. Rows beyond them are padding: their
    column is any.
    """
    num_tiles, columns = tile_shape(level, shape)
    if level.num_modules == 1:
        rows_B = np.arange(shape.num_rows, dtype=np.int32)
        return LevelTiles((_own_parts(level, paths[0]),), rows_B[None], rows_B)
    by_module: dict[int, list[int]] = {}
    for row, prepared in enumerate(paths):
        by_module.setdefault(module_of(level, prepared), []).append(row)
    modules: list[Parts] = []
    rows_TC = np.zeros((num_tiles, columns), np.int32)
    places_B = np.zeros(shape.num_rows, np.int32)
    for rows in by_module.values():
        own = _own_parts(level, paths[rows[0]])
        for start in range(0, len(rows), columns):
            tile = rows[start : start + columns]
            first = len(modules) * columns
            rows_TC[len(modules), : len(tile)] = tile
            places_B[tile] = np.arange(first, first + len(tile))
            modules.append(own)
    modules += [modules[-1]] * (num_tiles - len(modules))  # tiles without a row
    return LevelTiles(tuple(modules), rows_TC, places_B)


def any_tiles(level: LevelShape, paths: Sequence[Parts], shape: StepShape) -> LevelTiles:
    """Tiles of this shape: the rows in their own order, the modules of the paths in turn."""
    num_tiles, columns = tile_shape(level, shape)
    modules = tuple(_own_parts(level, paths[tile % len(paths)]) for tile in range(num_tiles))
    rows_N = np.arange(num_tiles * columns, dtype=np.int32) % shape.num_rows
    places_B = np.arange(shape.num_rows, dtype=np.int32)
    return LevelTiles(modules, rows_N.reshape(num_tiles, columns), places_B)


def _least_columns(level: LevelShape, shape: StepShape) -> int:
    if level.num_modules >= shape.num_rows:
        return LEAST_COLUMNS_ALONE
    has_room = ROOM_AS_ROWS * shape.num_rows <= LEAST_COLUMNS_AS_ROWS * level.num_modules
    if tokens_are_rows() and (has_room or shape.is_uneven):
        return LEAST_COLUMNS_AS_ROWS
    return LEAST_COLUMNS


def _own_parts(level: LevelShape, prepared: Parts) -> Parts:
    return {part: prepared[part] for part in level.parts}
