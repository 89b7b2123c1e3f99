"""The choice of paths that share a step.

A step per path reads the modules of every path. A step for all reads every module once, in tiles of
few columns, and attends to as many slots of the cache as its longest row needs, in every row. So
the estimated times of both are compared block by block.

Modules of a level may be stacked side by side on the device, for steps of many rows. A stack is a
copy that keeps its content while the modules stay the same, so that a step copies nothing.
"""

import collections
import enum
import functools
import math
import weakref
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dipaco.model.config import ModelConfig, part_parameters
from dipaco.model.kernels import tokens_are_rows
from dipaco.model.mixed import LevelTiles, MixedParts, ModuleStack
from dipaco.model.spec import Parts
from dipaco.serving.decoding.batch import Batch
from dipaco.serving.decoding.decode import LoopLimits, buckets, smallest_fitting
from dipaco.serving.decoding.request_queue import PathKey

RELEASES = 2  # releases with stacks: the newest, and the one that requests finish on


class LevelStack:
    """At most so many modules of one level of a release."""

    def __init__(self, num_places: int):
        self._parts: Any = None
        # Weak references to an array of each module keep no module in memory.
        self._held: list[weakref.ref[Any] | None] = [None] * num_places

    @property
    def modules(self) -> ModuleStack:
        """The modules by their places, after `put`. The other places hold nothing of use."""
        return ModuleStack(self._parts)

    def put(self, modules: Sequence[Parts]) -> list[int]:
        """Gives places to different modules. Copies the missing ones."""
        marks = [jax.tree.leaves(module)[0] for module in modules]
        assert len({*map(id, marks)}) == len(marks), "no two of them are the same module"
        held = [None if each is None else each() for each in self._held]
        place_of = {id(mark): place for place, mark in enumerate(held) if mark is not None}
        places = [place_of.get(id(mark)) for mark in marks]
        free = [place for place in range(len(held)) if place not in places]
        free.sort(key=lambda place: held[place] is not None)  # places without a module first
        return [
            self._copy(module, mark, free.pop(0)) if place is None else place
            for module, mark, place in zip(modules, marks, places, strict=True)
        ]

    def _copy(self, module: Parts, mark: Any, place: int) -> int:
        if self._parts is None:
            self._parts = _repeated(module, len(self._held))
        self._parts = _put(self._parts, module, place)
        self._held[place] = weakref.ref(mark)
        return place


class ModuleStacks:
    """The stacks of all levels, of the latest releases. Only the loop's thread uses them."""

    def __init__(self):
        self._releases: collections.OrderedDict[str, dict[tuple[str, ...], LevelStack]] = (
            collections.OrderedDict()  # the least recently used first
        )

    def of(self, release: str, parts: tuple[str, ...], num_places: int) -> LevelStack:
        """The stack of the level of a release that has these parts."""
        levels = self._releases.setdefault(release, {})
        self._releases.move_to_end(release)
        while len(self._releases) > RELEASES:
            self._releases.popitem(last=False)
        return levels.setdefault(parts, LevelStack(num_places))


@functools.partial(jax.jit, static_argnames=("number",))
def _repeated(module: Parts, number: int) -> Parts:
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (number, *leaf.shape)), module)


@functools.partial(jax.jit, donate_argnames=("stack",))
def _put(stack: Parts, module: Parts, place: int) -> Parts:
    return jax.tree.map(lambda all, one: all.at[place].set(one), stack, module)


# Columns of a tile. Fewer than eight are no faster: 64 rows of a 16x16 take 0.335 s of CPU time in
# tiles of four and 0.317 s in tiles of eight. Two if every row has a different module: XLA:CPU
# compiles products of one column ten times as long.
LEAST_COLUMNS, LEAST_COLUMNS_ALONE = 8, 2
# Fewer columns are faster if tokens are rows: in tiles of four a step of 8 rows of a 4x4 takes
# 0.66 of the time, a step of 32 of a 16x16 0.84 (AMD). But rows are seldom even, and rows that do
# not fit are padded to the next size. So four must be twice the even share, which holds rows drawn
# at random nine times in ten.
LEAST_COLUMNS_AS_ROWS, ROOM_AS_ROWS = 4, 2

# If tokens are rows, the modules of a level are stacked for many rows: a block of 64 rows of an 8x8
# takes 0.84 of its time with tiles apart (AMD, 0.84 M parameters a path, `tools/bench_serve.py
# --only paths --sides 8`). Fewer rows, stacks of two modules, and stacks that the processor's cache
# does not hold gain little: 0.96 to 0.98.
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
    """The tiles of a level for a row of each of these paths, with the level's stack if it is
    stacked. Rows beyond them are padding: their column is any.
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


def _least_columns(level: LevelShape, shape: StepShape) -> int:
    if level.num_modules >= shape.num_rows:
        return LEAST_COLUMNS_ALONE
    has_room = ROOM_AS_ROWS * shape.num_rows <= LEAST_COLUMNS_AS_ROWS * level.num_modules
    if tokens_are_rows() and (has_room or shape.spread is not Spread.EVEN):
        return LEAST_COLUMNS_AS_ROWS
    return LEAST_COLUMNS


def _own_parts(level: LevelShape, prepared: Parts) -> Parts:
    return {part: prepared[part] for part in level.parts}


# So many columns have products that take as long as reading the parameters. Of 8 layers of 128 x
# 512 in float32 (AVX-512, two cores): the products of 64 columns with one set of weights take 1.7
# ms, of 4 each with sixteen 7.5 ms.
COLUMNS_LIKE_READING = 16
BESIDES_PRODUCTS = 0.5  # time of a step besides its products
# A tile's products against those of a separate program: 64 rows of four paths, a 2x2, take 0.208 s
# of CPU time one after the other and 0.156 s together.
TILE_OVERHEAD = 1.2

Rows = int | StepShape  # rows of one path, padding included, or of several


class StepTimes:
    """Times in units of reading the parameters of a path."""

    def __init__(self, config: ModelConfig, levels: Sequence[LevelShape]):
        sizes = part_parameters(config)
        total = sum(sizes.values())
        self._slot = 2 * config.num_layers * config.kv_heads * config.head_size / total
        self._shares = [
            (level, sum(sizes[part] for part in level.parts) / total) for level in levels
        ]

    def of(self, rows: Rows, slots: int) -> float:
        """The time of a block whose rows attend to so many slots each. An accelerator has room for
        all products at once: a step takes as long for any rows.
        """
        if jax.default_backend() != "cpu":
            return 1.0
        if isinstance(rows, int):
            return BESIDES_PRODUCTS + _products(rows) + rows * slots * self._slot
        cache = rows.num_rows * slots * self._slot
        shapes = [(share, *tile_shape(level, rows)) for level, share in self._shares]
        products = (share * num_tiles * _products(columns) for share, num_tiles, columns in shapes)
        return BESIDES_PRODUCTS + TILE_OVERHEAD * sum(products) + cache


def _products(columns: int) -> float:
    """Time of the products with the parameters of a path, in units of reading these."""
    return 1 + columns / COLUMNS_LIKE_READING


class StepKind(NamedTuple):
    """Batches of one kind may share a step."""

    release: str
    # Any row has a grammar: blocks have fewer steps then, which others need not wait for.
    has_grammar: bool


class CommonStep(NamedTuple):
    """Inputs of a step for several paths beside their rows."""

    kind: StepKind
    shape: StepShape
    slots: int  # slots of the cache


class DecodeStep(NamedTuple):
    """Batches whose rows take their steps side by side."""

    batches: list[Batch]
    common: CommonStep | None = None  # None: there is one batch, of one path


TimedSteps = tuple[float, list[DecodeStep]]  # and how long they take one after the other


class Mixer:
    """Divides the active paths into steps. Levels have all parts. None: paths share no step."""

    def __init__(
        self, config: ModelConfig, levels: Sequence[LevelShape] | None, limits: LoopLimits
    ):
        self.levels, self._limits = tuple(levels or ()), limits
        self.slot_sizes = buckets(limits.smallest_slots, config.max_length)
        self.times = StepTimes(config, self.levels)

    @functools.cached_property
    def shapes(self) -> tuple[StepShape, ...]:
        """The shapes of steps for several paths. None exist if there are no such steps. Rows that
        do not fit the tiles of one shape are padded to the next.
        """
        sizes = self._limits.mixed_row_sizes
        if not sizes or all(level.num_modules == 1 for level in self.levels):
            return ()
        *fewer, most = sizes
        stacked = [StepShape(most, each, has_stacks=True) for each in (Spread.EVEN, Spread.RANDOM)]
        has_stacks = any(is_stacked(level, stacked[0]) for level in self.levels)
        return (
            *(StepShape(size, Spread.EVEN) for size in fewer),
            *(stacked if has_stacks else []),
            StepShape(most, Spread.EVEN),  # few modules may have all rows, each in several tiles
            StepShape(most, Spread.ANY),
        )

    @property
    def stack_bytes(self) -> int:
        """Bytes of the stacks of a release."""
        stacked = [n for n in self.levels if any(is_stacked(n, shape) for shape in self.shapes)]
        return sum(level.stack_bytes for level in stacked)

    def divide(self, batches: Mapping[PathKey, Batch]) -> list[DecodeStep]:
        """The steps of all batches with rows."""
        by_kind: dict[StepKind, list[Batch]] = {}
        for (release, _), batch in batches.items():
            if batch.rows:
                has_grammar = any(row.grammar is not None for row in batch.rows)
                by_kind.setdefault(StepKind(release, has_grammar), []).append(batch)
        return [step for kind, alike in by_kind.items() for step in self._soonest(kind, alike)]

    def slots(self, batches: Sequence[Batch]) -> int:
        """Slots of the cache that a block for these needs."""
        longest = max(len(row.tokens) for batch in batches for row in batch.rows)
        return smallest_fitting(self.slot_sizes, longest - 1 + self._limits.steps_per_block)

    def shape(self, batches: Sequence[Batch]) -> StepShape | None:
        """The shape of a common step. None: the run was stopped early, and has more modules."""
        num_rows = sum(len(batch.rows) for batch in batches)
        counts = [_rows_by_module(level, batches).values() for level in self.levels]

        def holds_all(shape: StepShape) -> bool:
            return num_rows <= shape.num_rows and all(
                holds(level, shape, rows) for level, rows in zip(self.levels, counts, strict=True)
            )

        return next(filter(holds_all, self.shapes), None)

    def parts(self, step: DecodeStep, stacks: ModuleStacks) -> MixedParts:
        """The modules that the rows of a common step pass, batch by batch."""
        assert step.common is not None
        paths = [batch.prepared for batch in step.batches for _ in batch.rows]
        return self.parts_of(paths, step.common.shape, step.common.kind.release, stacks)

    def parts_of(
        self, paths: Sequence[Parts], shape: StepShape, release: str, stacks: ModuleStacks
    ) -> MixedParts:
        """The modules of a row on each of these paths, and of padding."""

        def tiles(level: LevelShape) -> LevelTiles:
            if not is_stacked(level, shape):
                return tiles_of(level, paths, shape)
            stack = stacks.of(release, level.parts, level.num_modules)
            return tiles_of(level, paths, shape, stack)

        return MixedParts(tuple(map(tiles, self.levels)))

    def _soonest(self, kind: StepKind, batches: Sequence[Batch]) -> list[DecodeStep]:
        """The fastest way: all batches together, or those together that need as many slots."""
        slots = [self.slots([batch]) for batch in batches]
        seconds, steps = self._timed(kind, batches, slots)
        by_slots: dict[int, list[Batch]] = {}
        for batch, needed in zip(batches, slots, strict=True):
            by_slots.setdefault(needed, []).append(batch)
        if 1 < len(by_slots) < len(batches):
            items = by_slots.items()
            apart = [self._timed(kind, alike, [needed] * len(alike)) for needed, alike in items]
            if sum(each for each, _ in apart) < seconds:
                return [step for _, each in apart for step in each]
        return steps

    def _timed(self, kind: StepKind, batches: Sequence[Batch], slots: Sequence[int]) -> TimedSteps:
        """One step for all, or one for each, given the slots that each batch needs."""
        sizes = [smallest_fitting(self._limits.row_sizes, len(batch.rows)) for batch in batches]
        one_by_one = sum(map(self.times.of, sizes, slots))
        shape = self.shape(batches) if len(batches) > 1 else None
        if shape is not None:
            most = max(slots)
            together = self.times.of(shape, most)
            if together < one_by_one:
                return together, [DecodeStep(list(batches), CommonStep(kind, shape, most))]
        return one_by_one, [DecodeStep([batch]) for batch in batches]


def _rows_by_module(level: LevelShape, batches: Sequence[Batch]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for batch in batches:
        module = module_of(level, batch.prepared)
        counts[module] = counts.get(module, 0) + len(batch.rows)
    return counts
