"""The tiles of a step for rows of several paths: `model.mixed` from the paths of the rows."""

import enum
import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from dipaco.model.kernels import tokens_are_rows
from dipaco.model.mixed import LevelTiles
from dipaco.model.spec import Parts
from dipaco.serving.decoding.module_stacks import LevelStack

# Columns of a tile. Fewer than eight are no faster: 64 rows of a 16x16 take 0.335 s of CPU time in
# tiles of four and 0.317 s in tiles of eight. Two if every row has a different module: XLA:CPU
# compiles products of one column ten times as long.
LEAST_COLUMNS, LEAST_COLUMNS_ALONE = 8, 2
# Fewer columns are faster if tokens are rows: in tiles of four a step of 8 rows of a 4x4 takes
# 0.66 of the time, a step of 32 of a 16x16 0.84, a step of 64 in the tiles that hold any of its
# rows 0.91 (AMD). But rows are seldom even, and rows that do not fit are padded to the next size:
# eight tiles of four never held 32 rows drawn at random from an 8x8, eight of eight did five
# times in six. So four must be twice the even share, which holds such rows nine times in ten.
LEAST_COLUMNS_AS_ROWS, ROOM_AS_ROWS = 4, 2

# If tokens are rows, the modules of a level are stacked for many rows: a block of 64 rows of an 8x8
# takes 0.84 of its time with tiles apart, and a block of 64 rows drawn at random, for which stacks
# have room, 0.75 to 0.84 (AMD, 0.84 M parameters a path, `tools/bench_serve.py --only paths --sides
# 8`, with and without `--at-random`). Fewer rows gain little: a step of 32 takes 0.96 of the time,
# a step of 8 in tiles of two 1.36. Stacks of two modules gain as little, 0.96 in a 2x2, and more
# programs make a start longer. And stacks that the processor's cache does not hold gain nothing:
# 0.98 in a 16x16, whose 32 modules take 54 MB.
LEAST_STACKED_ROWS, LEAST_STACKED_COLUMNS, LEAST_STACKED_MODULES = 64, 8, 3
LARGEST_STACK_BYTES = 16 << 20
# Standard deviations of a module's rows, drawn at random, for which its tile has room.
ROOM_DEVIATIONS = 2.5


class LevelShape(NamedTuple):
    """The parts of one level, and how many modules a release has for them."""

    parts: tuple[str, ...]
    num_modules: int
    module_bytes: int | None = None  # None: unknown, and so never stacked

    @property
    def stack_bytes(self) -> int:
        """Bytes of all its modules side by side."""
        return self.num_modules * (self.module_bytes or 0)


class Spread(enum.Enum):
    """The spread of a step's rows over the modules of a level."""

    EVEN = "evenly"
    RANDOM = "at random"  # stacked levels have room for nearly all such rows, others for any
    ANY = "in any way"


class StepShape(NamedTuple):
    """The shape of a step for several paths."""

    num_rows: int  # padding included
    spread: Spread  # spread that it has tiles for
    has_stacks: bool = False  # the levels that fit a stack have one


def tile_shape(level: LevelShape, shape: StepShape) -> tuple[int, int]:
    """Tiles and columns of each that hold the rows of a level, so spread."""
    num_rows = shape.num_rows
    if level.num_modules == 1:
        return 1, num_rows
    if is_stacked(level, shape):
        columns = num_rows / level.num_modules
        if shape.spread is Spread.RANDOM:
            columns += ROOM_DEVIATIONS * math.sqrt(columns)
        return level.num_modules, 4 * math.ceil(columns / 4)
    columns = max(_least_columns(level, shape), math.ceil(num_rows / level.num_modules))
    even = min(level.num_modules, num_rows)
    is_even = shape.spread is Spread.EVEN
    return even if is_even else even + (num_rows - even) // columns, columns


def is_stacked(level: LevelShape, shape: StepShape) -> bool:
    """True if the modules of a level lie side by side for this shape, each of them one tile."""
    return (
        shape.has_stacks
        and tokens_are_rows()
        and level.num_modules >= LEAST_STACKED_MODULES
        and shape.num_rows >= LEAST_STACKED_ROWS
        and shape.num_rows >= LEAST_STACKED_COLUMNS * level.num_modules
        and 0 < level.stack_bytes <= LARGEST_STACK_BYTES
    )


def holds(level: LevelShape, shape: StepShape, rows_of_modules: Collection[int]) -> bool:
    """True if there are tiles for so many rows of each module."""
    num_tiles, columns = tile_shape(level, shape)
    if is_stacked(level, shape):
        return len(rows_of_modules) <= num_tiles and max(rows_of_modules, default=0) <= columns
    return sum(math.ceil(number / columns) for number in rows_of_modules) <= num_tiles


def module_of(level: LevelShape, prepared: Parts) -> int:
    """Paths that share a module hold the same objects: `path_cache` copies nothing."""
    return id(prepared[level.parts[0]])


def tiles_of(
    level: LevelShape, paths: Sequence[Parts], shape: StepShape, stack: LevelStack | None = None
) -> LevelTiles:
    """The tiles of a level for a row of each of these paths. Rows beyond them are padding: their
    column is any.

    Args:
      paths: prepared parts of the path of each row.
      shape: it holds the rows.
      stack: the level's, if it is stacked.
    """
    num_tiles, columns = tile_shape(level, shape)
    if level.num_modules == 1:
        rows_B = np.arange(shape.num_rows, dtype=np.int32)
        return LevelTiles((_own_parts(level, paths[0]),), rows_B[None], rows_B)
    by_module: dict[int, list[int]] = {}
    for row, prepared in enumerate(paths):
        by_module.setdefault(module_of(level, prepared), []).append(row)
    tiles = [
        (_own_parts(level, paths[rows[0]]), rows[start : start + columns])
        for rows in by_module.values()
        for start in range(0, len(rows), columns)
    ]
    modules = [module for module, _ in tiles]
    numbers = range(len(tiles)) if stack is None else stack.put(modules)
    rows_TC = np.zeros((num_tiles, columns), np.int32)
    places_B = np.zeros(shape.num_rows, np.int32)
    for number, (_, rows) in zip(numbers, tiles, strict=True):
        rows_TC[number, : len(rows)] = rows
        places_B[rows] = number * columns + np.arange(len(rows))
    if stack is not None:
        return LevelTiles(stack.modules, rows_TC, places_B)
    modules += [modules[-1]] * (num_tiles - len(modules))  # tiles without a row
    return LevelTiles(tuple(modules), rows_TC, places_B)


def any_tiles(level: LevelShape, paths: Sequence[Parts], shape: StepShape) -> LevelTiles:
    """Tiles of this shape: the rows in order, the modules of the paths one after the other."""
    num_tiles, columns = tile_shape(level, shape)
    rows_N = np.arange(num_tiles * columns, dtype=np.int32) % shape.num_rows
    rows_TC = rows_N.reshape(num_tiles, columns)
    places_B = np.arange(shape.num_rows, dtype=np.int32)
    modules = [_own_parts(level, paths[tile % len(paths)]) for tile in range(num_tiles)]
    if is_stacked(level, shape):
        stack = LevelStack(num_tiles)
        stack.put(modules[: len(paths)])
        return LevelTiles(stack.modules, rows_TC, places_B)
    return LevelTiles(tuple(modules), rows_TC, places_B)


def _least_columns(level: LevelShape, shape: StepShape) -> int:
    if level.num_modules >= shape.num_rows:
        return LEAST_COLUMNS_ALONE
    has_room = ROOM_AS_ROWS * shape.num_rows <= LEAST_COLUMNS_AS_ROWS * level.num_modules
    if tokens_are_rows() and (has_room or shape.spread is not Spread.EVEN):
        return LEAST_COLUMNS_AS_ROWS
    return LEAST_COLUMNS


def _own_parts(level: LevelShape, prepared: Parts) -> Parts:
    return {part: prepared[part] for part in level.parts}
