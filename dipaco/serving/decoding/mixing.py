"""Which paths share a step, and its tiles: `model.mixed` from the rows of several paths.

A step per path reads the modules of every path; a step for all reads every module once, in tiles
of few columns. Which is sooner depends on the rows and on the machine: sixty-four rows of two paths
are faster in turn where the paths share nothing. So both are measured at the start (`step_times`);
a loop that was not warmed up estimates them, in units of reading the parameters of a path.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dipaco.model.config import ModelConfig, part_parameters
from dipaco.model.mixed import LevelTiles, MixedParts
from dipaco.model.spec import Parts
from dipaco.serving.decoding.batch import Batch
from dipaco.serving.decoding.decode import smallest_fitting
from dipaco.serving.decoding.limits import LoopLimits
from dipaco.serving.decoding.waiting_requests import PathKey

# Columns of a tile. Fewer than eight are no sooner: 64 rows of a 16x16 take 0.335 s of CPU time in
# tiles of four and 0.317 s in tiles of eight. Where every row has a module of its own, two: XLA:CPU
# compiles products of one column ten times as long.
LEAST_COLUMNS, LEAST_COLUMNS_ALONE = 8, 2
# A tile's products against those of a program of its own. 64 rows of four paths, a 2x2, 32 tokens
# each, take 0.208 s of CPU time in turn and 0.156 s together (0.84 M parameters a path), and 1.338
# and 1.021 s (8.4 M).
TILE_OVERHEAD = 1.2


# So many columns have products that take as long as reading the parameters. Of 8 layers of 128 x
# 512 in float32 (AVX-512, two cores): the products of 64 columns with one set of weights take 1.7
# ms, of 8 each with eight 4.7 ms, of 4 each with sixteen 7.5 ms, of one each with sixty-four 19 to
# 23 ms.
COLUMNS_LIKE_READING = 16
BESIDES_PRODUCTS = 0.5  # what a step takes besides them


class LevelShape(NamedTuple):
    """The parts of one level, and how many modules a release has for them."""

    parts: tuple[str, ...]
    num_modules: int


class StepShape(NamedTuple):
    """The shape of a step for several paths."""

    num_rows: int  # padding included
    is_uneven: bool  # with the tiles that any rows need, not those of evenly spread ones


class StepKind(NamedTuple):
    """Batches of one kind may share a step."""

    release: str
    has_grammar: bool  # of any row: blocks have fewer steps then, which others need not wait for


class DecodeStep(NamedTuple):
    """Batches whose rows take their steps side by side."""

    batches: list[Batch]
    common: tuple[StepKind, StepShape] | None = None  # of several paths; None: there is one batch


class Mixer:
    """Divides the active paths into steps.

    Args:
      config: sizes of a path.
      levels: each part of the model is in one of them. None: every path has a step of its own.
      limits: of the loop.
    """

    def __init__(
        self,
        config: ModelConfig,
        levels: Sequence[LevelShape] | None,
        limits: LoopLimits,
    ):
        self._levels, self._limits = tuple(levels or ()), limits
        # Of a block, by the number of rows of one path (padding included) or the shape of a step
        # for several; empty: not measured.
        self.seconds: Mapping[int | StepShape, float] = {}
        sizes = part_parameters(config)
        self._shares = [
            sum(sizes[part] for part in level.parts) / sum(sizes.values()) for level in self._levels
        ]

    @property
    def shapes(self) -> tuple[StepShape, ...]:
        """Of steps for several paths; none where there are no such. Rows that are too uneven for
        the tiles of one are padded to the next.
        """
        sizes = self._limits.mixed_row_sizes
        if not sizes or all(level.num_modules == 1 for level in self._levels):
            return ()
        return (*(StepShape(size, False) for size in sizes), *(StepShape(sizes[-1], True),))

    def divide(self, batches: Mapping[PathKey, Batch]) -> list[DecodeStep]:
        """The steps of all batches with rows."""
        by_kind: dict[StepKind, list[Batch]] = {}
        steps: list[DecodeStep] = []
        for (release, _), batch in batches.items():
            if batch.rows:
                has_grammar = any(row.grammar is not None for row in batch.rows)
                by_kind.setdefault(StepKind(release, has_grammar), []).append(batch)
        for kind, together in by_kind.items():
            shape = self.shape(together) if len(together) > 1 else None
            if shape is not None and self._is_sooner(together, shape):
                steps.append(DecodeStep(together, (kind, shape)))
            else:
                steps += [DecodeStep([batch]) for batch in together]
        return steps

    def shape(self, batches: Sequence[Batch]) -> StepShape | None:
        """Of a common step; None where there is none: a release has more modules than its levels
        say if its run was stopped early.
        """
        num_rows = sum(len(batch.rows) for batch in batches)
        counts = [_rows_by_module(level, batches).values() for level in self._levels]

        def holds(shape: StepShape) -> bool:
            if num_rows > shape.num_rows:
                return False
            for level, numbers in zip(self._levels, counts, strict=True):
                num_tiles, columns = _tile_shape(level, shape)
                if sum(math.ceil(number / columns) for number in numbers) > num_tiles:
                    return False
            return True

        return next(filter(holds, self.shapes), None)

    def parts(self, batches: Sequence[Batch], shape: StepShape) -> MixedParts:
        """The modules that the rows pass, in the order of the batches and of the rows in each."""
        paths = [batch.prepared for batch in batches for _ in batch.rows]
        return MixedParts(tuple(_tiles(level, paths, shape) for level in self._levels))

    def any_parts(self, paths: Sequence[Parts], shape: StepShape) -> MixedParts:
        """Modules of some paths, in tiles as any step of this shape has them."""
        return MixedParts(tuple(_any_tiles(level, paths, shape) for level in self._levels))

    def _is_sooner(self, batches: Sequence[Batch], shape: StepShape) -> bool:
        sizes = [smallest_fitting(self._limits.row_sizes, len(batch.rows)) for batch in batches]
        if self.seconds:
            return self.seconds[shape] < sum(self.seconds[number] for number in sizes)
        together = BESIDES_PRODUCTS
        for level, share in zip(self._levels, self._shares, strict=True):
            num_tiles, columns = _tile_shape(level, shape)
            together += TILE_OVERHEAD * share * num_tiles * _products(columns)
        return together < sum(BESIDES_PRODUCTS + _products(number) for number in sizes)


def _products(columns: int) -> float:
    """How long they take with the parameters of a path, in units of reading these."""
    return 1 + columns / COLUMNS_LIKE_READING


def _tile_shape(level: LevelShape, shape: StepShape) -> tuple[int, int]:
    """Tiles and columns of each that hold evenly spread rows of a level, or any rows."""
    num_rows = shape.num_rows
    if level.num_modules == 1:
        return 1, num_rows
    least = LEAST_COLUMNS if level.num_modules < num_rows else LEAST_COLUMNS_ALONE
    columns = max(least, math.ceil(num_rows / level.num_modules))
    even = min(level.num_modules, num_rows)
    return even + (num_rows - even) // columns if shape.is_uneven else even, columns


def _rows_by_module(level: LevelShape, batches: Sequence[Batch]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for batch in batches:
        module = _module_of(level, batch.prepared)
        counts[module] = counts.get(module, 0) + len(batch.rows)
    return counts


def _module_of(level: LevelShape, prepared: Parts) -> int:
    """Paths that share a module hold the same objects: `path_cache` copies nothing."""
    return id(prepared[level.parts[0]])


def _tiles(level: LevelShape, paths: Sequence[Parts], shape: StepShape) -> LevelTiles:
    """The tiles of a level. Rows beyond `paths` are padding: their column is any."""
    num_tiles, columns = _tile_shape(level, shape)
    if level.num_modules == 1:
        rows_B = np.arange(shape.num_rows, dtype=np.int32)
        return LevelTiles((_own_parts(level, paths[0]),), rows_B[None], rows_B)
    by_module: dict[int, list[int]] = {}
    for row, prepared in enumerate(paths):
        by_module.setdefault(_module_of(level, prepared), []).append(row)
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


def _any_tiles(level: LevelShape, paths: Sequence[Parts], shape: StepShape) -> LevelTiles:
    """The rows in their own order, the modules of the paths in turn."""
    num_tiles, columns = _tile_shape(level, shape)
    modules = tuple(_own_parts(level, paths[tile % len(paths)]) for tile in range(num_tiles))
    rows_N = np.arange(num_tiles * columns, dtype=np.int32) % shape.num_rows
    return LevelTiles(
        modules, rows_N.reshape(num_tiles, columns), np.arange(shape.num_rows, dtype=np.int32)
    )


def _own_parts(level: LevelShape, prepared: Parts) -> Parts:
    return {part: prepared[part] for part in level.parts}
