"""The choice of paths that share a step.

A step per path reads the modules of every path. A step for all reads every module once, in tiles of
few columns. The faster one depends on the rows and on the machine: sixty-four rows of two paths are
faster one path after the other if the paths share nothing. A step attends to as many slots of the
cache as its longest row needs, in every row: one long text among short ones is faster apart. So the
estimated times of both are compared block by block (`step_times`).
"""

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dipaco.model.config import ModelConfig
from dipaco.model.mixed import LevelTiles, MixedParts
from dipaco.model.spec import Parts
from dipaco.serving.decoding.batch import Batch
from dipaco.serving.decoding.decode import buckets, smallest_fitting
from dipaco.serving.decoding.limits import LoopLimits
from dipaco.serving.decoding.module_stacks import ModuleStacks
from dipaco.serving.decoding.step_times import BlockShape, StepTimes
from dipaco.serving.decoding.stream import PathKey
from dipaco.serving.decoding.tiles import (
    LevelShape,
    Spread,
    StepShape,
    any_tiles,
    holds,
    is_stacked,
    module_of,
    tiles_of,
)


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


class TimedSteps(NamedTuple):
    """Steps for some batches, and how long they take one after the other."""

    steps: list[DecodeStep]
    time: float


class Mixer:
    """Divides the active paths into steps.

    Args:
      levels: each part of the model is in one of them. None: no two paths share a step.
    """

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
        return sum(
            level.stack_bytes
            for level in self.levels
            if any(is_stacked(level, shape) for shape in self.shapes)
        )

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
        """The shape of a common step. None if there is none: a release has more modules than its
        levels say if its run was stopped early.
        """
        num_rows = sum(len(batch.rows) for batch in batches)
        counts = [_rows_by_module(level, batches).values() for level in self.levels]

        def holds_all(shape: StepShape) -> bool:
            return num_rows <= shape.num_rows and all(
                holds(level, shape, rows) for level, rows in zip(self.levels, counts, strict=True)
            )

        return next(filter(holds_all, self.shapes), None)

    def parts(self, step: DecodeStep, stacks: ModuleStacks) -> MixedParts:
        """The modules that the rows of a common step pass, in the order of the batches and of the
        rows in each.
        """
        assert step.common is not None
        (release, _), shape, _ = step.common
        paths = [batch.prepared for batch in step.batches for _ in batch.rows]

        def tiles(level: LevelShape) -> LevelTiles:
            if not is_stacked(level, shape):
                return tiles_of(level, paths, shape)
            stack = stacks.of(release, level.parts, level.num_modules)
            return tiles_of(level, paths, shape, stack)

        return MixedParts(tuple(map(tiles, self.levels)))

    def any_parts(self, paths: Sequence[Parts], shape: StepShape) -> MixedParts:
        """Modules of some paths, in tiles as any step of this shape has them."""
        return MixedParts(tuple(any_tiles(level, paths, shape) for level in self.levels))

    def _soonest(self, kind: StepKind, batches: Sequence[Batch]) -> list[DecodeStep]:
        """The fastest way: all batches together, or those together that need as many slots."""
        slots = [self.slots([batch]) for batch in batches]
        together = self._timed(kind, batches, slots)
        by_slots: dict[int, list[Batch]] = {}
        for batch, needed in zip(batches, slots, strict=True):
            by_slots.setdefault(needed, []).append(batch)
        if 1 < len(by_slots) < len(batches):
            apart = [
                self._timed(kind, alike, [needed] * len(alike))
                for needed, alike in by_slots.items()
            ]
            if sum(each.time for each in apart) < together.time:
                return [step for each in apart for step in each.steps]
        return together.steps

    def _timed(self, kind: StepKind, batches: Sequence[Batch], slots: Sequence[int]) -> TimedSteps:
        """One step for all, or one for each, given the slots that each batch needs."""
        sizes = [smallest_fitting(self._limits.row_sizes, len(batch.rows)) for batch in batches]
        blocks = zip(sizes, slots, strict=True)
        one_by_one = sum(self.times.of(BlockShape(*block)) for block in blocks)
        shape = self.shape(batches) if len(batches) > 1 else None
        if shape is not None:
            most = max(slots)
            together = self.times.of(BlockShape(shape, most))
            if together < one_by_one:
                step = DecodeStep(list(batches), CommonStep(kind, shape, most))
                return TimedSteps([step], together)
        return TimedSteps([DecodeStep([batch]) for batch in batches], one_by_one)


def _rows_by_module(level: LevelShape, batches: Sequence[Batch]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for batch in batches:
        module = module_of(level, batch.prepared)
        counts[module] = counts.get(module, 0) + len(batch.rows)
    return counts
