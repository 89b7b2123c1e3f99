"""The facts of a run that are drawn over time, as arrays: a row for each phase, a column for each
module or path. A run of 256 paths and 1,000 phases takes some 40 MB, however long it is watched.

Times are seconds since the first known event. A fact whose event was pruned, or that is older than
the history, has the time 0.
"""

import array
import json
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from dipaco.dashboard.columns import packed, packed_integers
from dipaco.schedule.arm import Arm
from dipaco.schedule.plan import Plan

Cell = tuple[int, int]  # a phase, and the number of a module or a path
# Limit over all modules and phases together. Beyond it they are left out.
MOST_PATH_NORMS = 300_000


class EventRow(NamedTuple):
    """A row of `events.sql`."""

    number: int
    kind: str | None
    arm: str | None
    subject: str | None
    phase: int | None
    attempt: int | None
    worker: str
    machine: str
    begun: float | None  # seconds of a wall clock, like all recorded times
    ended: float
    outcome: str
    reason: str


class ArmFacts:
    """The facts of one arm."""

    def __init__(self, arm: Arm, *, synchronous: bool):
        self.arm, self.synchronous = arm, synchronous
        self.modules = [str(module) for module in arm.topology.modules]
        self.module_number = {module: i for i, module in enumerate(self.modules)}
        phases, paths, modules = arm.phases, arm.topology.num_paths, len(self.modules)
        self.step_times = np.full((phases, modules), np.nan, np.float32)
        self.norms = np.full((phases, modules), np.nan, np.float32)
        self.cosines = np.full((phases, modules), np.nan, np.float32)
        most = max(map(arm.topology.fan_in, arm.topology.modules))
        has_norms = arm.has_outer_steps and phases * modules * most <= MOST_PATH_NORMS
        self.path_norms = np.full((phases, modules, most * has_norms), np.nan, np.float32)
        self.train_times = np.full((phases, paths), np.nan, np.float32)
        # Times by events, and marks of facts that were there before the oldest kept event.
        self.told_steps, self.told_phases = self.step_times.copy(), self.train_times.copy()
        self._old_steps = np.zeros(self.step_times.shape, bool)
        self._old_phases = np.zeros(self.train_times.shape, bool)
        self.losses = np.full((phases, paths), np.nan, np.float32)
        self.seconds = np.full((phases, paths), np.nan, np.float32)
        # Gradient norms of the inner steps: their mean, and the largest.
        self.inner_norms, self.largest_norms = np.full((2, phases, paths), np.nan, np.float32)
        self.tokens, self.bytes_down, self.bytes_up = np.zeros((3, phases, paths), np.int64)
        self._through = [arm.topology.paths_through(module) for module in arm.topology.modules]

    def add_steps(self, rows: Iterable[tuple]) -> None:
        """Outer steps: module, phase that it reached, norm of the mean, statistics as JSON."""
        for module, phase, norm, stats in rows:
            at = phase - 1, self.module_number[module]
            self.norms[at] = norm
            if stats is None:
                continue
            norms, cosine = json.loads(stats)
            self.cosines[at] = math.nan if cosine is None else cosine
            if self.path_norms.shape[2]:
                through = self._through[at[1]]
                for path, value in norms.items():
                    self.path_norms[(*at, through.index(int(path)))] = value

    def add_phase(self, path: int, phase: int, row: tuple) -> None:
        """A path's phase: tokens, seconds, bytes down and up, gradient norms, the end of the text
        of its losses.
        """
        at = phase, path
        self.tokens[at], self.seconds[at], self.bytes_down[at], self.bytes_up[at] = row[:4]
        norms = [math.nan if norm is None else norm for norm in row[4:6]]
        self.inner_norms[at], self.largest_norms[at] = norms
        losses = row[6].rstrip("]").replace("[", ",").rpartition(",")[2].strip()
        self.losses[at] = float(losses) if losses else math.nan

    def forget_from(self, phase: int) -> None:
        """The arm went back to a phase, so later phases are done again."""
        for columns in (
            *(self.step_times, self.norms, self.cosines, self.path_norms),
            *(self.train_times, self.losses, self.seconds, self.inner_norms, self.largest_norms),
            *(self.told_steps, self.told_phases),
        ):
            columns[phase:] = np.nan
        for columns in (self.tokens, self.bytes_down, self.bytes_up):
            columns[phase:] = 0
        self._old_steps[phase:] = self._old_phases[phase:] = False

    def fill_times(self, *, is_first: bool = False) -> list[set[Cell]]:
        """Computes the times from the events. A fact that the first read finds without one was
        there from the beginning. Returns the times of modules and of paths that have changed.
        """
        if is_first:
            self._old_steps = ~np.isnan(self.norms)
            self._old_phases = ~np.isnan(self.seconds)
        changed = []
        for times, told, old in (
            (self.step_times, self.told_steps, self._old_steps),
            (self.train_times, self.told_phases, self._old_phases),
        ):
            known = np.where(np.isnan(told) & old, np.float32(0), told)
            # A phase that was skipped, or whose event came late, was over when the next was.
            filled = np.fmin.accumulate(known[::-1])[::-1]
            is_same = (filled == times) | (np.isnan(filled) & np.isnan(times))
            changed.append({(int(phase), int(of)) for phase, of in np.argwhere(~is_same)})
            times[:] = filled
        return changed

    def as_json(self) -> dict[str, Any]:
        """The arm's JSON values for the page."""
        arm = self.arm
        content: dict[str, Any] = {
            "phases": arm.phases,
            "num_paths": arm.topology.num_paths,
            "steps": [arm.steps_before(phase) for phase in range(arm.phases + 1)],
            "train_times": packed(self.train_times, "f4"),
            "losses": packed(self.losses, "f4"),
            "seconds": packed(self.seconds, "f4"),
            "tokens": packed(self.tokens, "f4"),
            "bytes_down": packed(self.bytes_down, "f4"),
            "bytes_up": packed(self.bytes_up, "f4"),
            "inner_norms": packed(self.inner_norms, "f4"),
            "largest_norms": packed(self.largest_norms, "f4"),
        }
        if arm.has_outer_steps:
            content |= {
                "levels": [
                    {
                        "name": level.name,
                        "parts": list(level.parts),
                        "modules": [m for m in self.modules if m.rpartition("/")[0] == level.name],
                    }
                    for level in arm.topology.levels
                    if level.parts
                ],
                "modules": self.modules,
                "paths": [
                    [self.module_number[str(m)] for m in arm.topology.modules_of(path)]
                    for path in range(arm.topology.num_paths)
                ],
                "step_times": packed(self.step_times, "f4"),
                "norms": packed(self.norms, "f4"),
                "cosines": packed(self.cosines, "f4"),
                "path_norms": packed(self.path_norms, "f4"),
            }
        return content


class RunFacts:
    """The facts of all arms, and the events behind them."""

    def __init__(self, plan: Plan):
        self.arms = {
            arm.name: ArmFacts(arm, synchronous=arm.is_synchronous)
            for arm in (plan.base, *plan.arms)
        }
        self.origin: float | None = None  # wall clock time of the first event
        self.number = 0  # number of the newest event
        self.sampled: dict[tuple[str, int], float] = {}  # (arm, phase) -> when texts were made
        self._names: dict[str, dict[str, int]] = {
            name: {} for name in ("kinds", "arms", "subjects", "workers", "outcomes", "reasons")
        }
        self._columns: dict[str, array.array[Any]] = {
            "begun": array.array("f"),
            "ended": array.array("f"),
            **{name: array.array("i") for name in ("phase", "attempt", *self._names)},
        }

    def relative(self, seconds: float) -> float:
        """Seconds of the wall clock -> seconds since the beginning."""
        if self.origin is None:
            self.origin = seconds
        return max(0.0, seconds - self.origin)

    def add(self, event: EventRow) -> None:
        """Adds one event. Events are added in order."""
        self.number = max(self.number, event.number)
        if event.begun is not None:
            self.relative(event.begun)
        ended = self.relative(event.ended)
        begun = ended if event.begun is None else min(ended, self.relative(event.begun))
        columns = self._columns
        columns["begun"].append(begun)
        columns["ended"].append(ended)
        columns["phase"].append(-1 if event.phase is None else event.phase)
        columns["attempt"].append(event.attempt or 0)
        for name, value in (
            ("kinds", event.kind or ""),
            ("arms", event.arm or ""),
            ("subjects", event.subject or ""),
            ("workers", event.worker),
            ("outcomes", event.outcome),
            ("reasons", event.reason),
        ):
            numbers = self._names[name]
            columns[name].append(numbers.setdefault(value, len(numbers)))
        self._note_time(event, ended)

    def _note_time(self, event: EventRow, ended: float) -> None:
        if event.outcome == "rollback":
            arm, _, phase = event.reason.partition(" to phase ")
            if arm in self.arms and phase.isdigit():
                self.arms[arm].forget_from(int(phase))
                for release in [at for at in self.sampled if at[0] == arm and at[1] > int(phase)]:
                    del self.sampled[release]
        if event.outcome != "done" or event.arm not in self.arms or event.phase is None:
            return
        of, phase = self.arms[event.arm], event.phase
        if event.kind == "sample":
            self.sampled.setdefault((event.arm, phase), ended)
        if phase >= of.arm.phases:
            return
        if event.kind == "outer":
            at = phase, of.module_number[event.subject or ""]
            if np.isnan(of.told_steps[at]):  # a repeated task gives the same fact
                of.told_steps[at] = ended
        elif event.kind in ("train", "pretrain"):
            row = of.told_phases[phase]
            where = slice(None) if of.synchronous else int(event.subject or 0)
            row[where] = np.where(np.isnan(row[where]), ended, row[where])

    @property
    def num_events(self) -> int:
        return len(self._columns["ended"])

    @property
    def last_seconds(self) -> float:
        """Time of the newest event."""
        return max(self._columns["ended"][-1:], default=0.0)

    def events_as_json(self, first: int = 0) -> dict[str, Any]:
        """The events from `first` on, in columns. Names are numbers in the lists of `names`."""
        return {
            name: packed(values[first:], "f4")
            if values.typecode == "f"
            else packed_integers(values[first:])
            for name, values in self._columns.items()
        }

    def names(self) -> dict[str, list[str]]:
        """The names behind the numbers of the events."""
        return {name: list(numbers) for name, numbers in self._names.items()}
