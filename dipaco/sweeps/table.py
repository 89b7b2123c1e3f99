"""The table of a sweep, from the reports of its finished runs.

Each row is compared with the first row and with every other row. Differences are paired by seed
(`pairing.py`) if both rows were scored on the same documents (`measured.py`).
"""

import dataclasses
import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dipaco.config import MODULAR, RunConfig
from dipaco.evaluation.tables import ReportRow
from dipaco.model.config import part_names
from dipaco.sweeps.kinds import kind_of
from dipaco.sweeps.measured import (
    NamedRow,
    Origin,
    are_apart,
    name_of,
    named_rows,
    seeds_alike,
)
from dipaco.sweeps.notes import table_notes
from dipaco.sweeps.pairing import Interval, paired_difference
from dipaco.sweeps.trials import Trial
from dipaco.topology import SHARED

COSTS = ("steps", "tokens", "parameters_per_path", "flops")  # the costs in which rows may be equal


@dataclasses.dataclass(frozen=True)
class LevelSummary:
    """A level of a row's topology."""

    name: str
    experts: int  # 1 = shared, 0 = one per path
    parts: list[str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepRow(ReportRow):
    """A `ReportRow` over all seeds: mean perplexity, median times, the first seed's costs."""

    sweep: str
    levels: list[LevelSummary]
    seeds: list[int]  # the finished ones
    difference: float | None = None  # to the first row, paired by seed. None = not compared
    spread: float | None  # half-width of its 95 % interval
    held_equal: list[str]  # the COSTS that are equal in the first row
    perplexities: list[float]  # one a seed
    tune_perplexities: list[float] = dataclasses.field(default_factory=list)  # likewise
    kind: str = MODULAR  # kind of model: an arm of a run, or `DiLoCo`


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ordering:
    """The comparison of two rows."""

    better: str
    worse: str
    difference: float  # perplexity of `worse` - `better`, mean over paired seeds
    spread: float | None  # half-width of its 95 % interval. None with fewer than three seeds
    seeds: list[int]
    resolved: bool  # True: the interval excludes zero
    # The same perplexity under every seed that both have: one run, or two of equal settings.
    is_equal: bool
    held_equal: list[str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepTable:
    """The table that `dipaco ablate` writes."""

    sweep: str
    reference: str  # the first row. `difference` and `held_equal` of the others refer to it
    rows: list[SweepRow]
    orderings: list[Ordering]  # one for every pair of rows
    runs: list[ReportRow]  # the rows of every run's report
    missing: list[str]  # unfinished runs
    apart: list[str]  # rows on other text or documents than the reference, not compared with it
    notes: list[str]

    def to_json(self) -> bytes:
        """UTF-8 JSON, indented."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"


def by_seed(row: SweepRow) -> dict[int, float]:
    """Perplexities of a row by seed."""
    return dict(zip(row.seeds, row.perplexities, strict=True))


def tune_by_seed(row: SweepRow) -> dict[int, float]:
    """The perplexities of tune documents by seed: what a row is chosen by."""
    return dict(zip(row.seeds, row.tune_perplexities, strict=True))


def make_table(
    sweep: str,
    trials: Sequence[Trial],
    results: Mapping[Trial, Sequence[ReportRow]],
    origins: Mapping[Trial, Origin] | None = None,
    reference: str = "",
) -> SweepTable:
    """The table of a sweep.

    Args:
      results: trial -> the rows of its report. Unfinished trials are absent.
      origins: trial -> origin of its run. If absent, settings alone tell the text of a perplexity.
      reference: the row that the others are compared with, which becomes the first. Empty, or not
        finished: the first row.
    """
    rows = named_rows(trials, results, origins or {})
    if reference in rows:
        rows = {reference: rows[reference], **rows}
    reference = next(iter(rows), "")
    main = [row for row in rows.values() if row.is_main]
    pairs = (_compare(one, other) for one, other in itertools.combinations(main, 2))
    return SweepTable(
        sweep=sweep,
        reference=reference,
        rows=[_sweep_row(sweep, row, rows[reference]) for row in rows.values()],
        orderings=[pair for pair in pairs if pair is not None],
        runs=[
            dataclasses.replace(result, name=name_of(trial.row, result.name))
            for trial in trials
            if trial in results
            for result in results[trial]
        ],
        missing=[str(trial) for trial in trials if trial not in results],
        apart=[name for name, row in rows.items() if are_apart(rows[reference], row)],
        notes=table_notes(rows),
    )


def _sweep_row(sweep: str, row: NamedRow, reference: NamedRow) -> SweepRow:
    results = [row.by_seed[seed].result for seed in sorted(row.by_seed)]
    to_first = None if row is reference else _difference(reference, row)
    common: dict[str, Any] = dataclasses.asdict(results[0]) | {
        "name": row.name,
        "perplexity": statistics.fmean(result.perplexity for result in results),
        "bits_per_byte": statistics.fmean(result.bits_per_byte for result in results),
        "tune_perplexity": _mean([result.tune_perplexity for result in results]),
        "wrong_path_perplexity": _mean([result.wrong_path_perplexity for result in results]),
        "seconds": statistics.median(result.seconds for result in results),
        "machine_seconds": statistics.median(result.machine_seconds for result in results),
        "link_seconds": {
            link: statistics.median(result.link_seconds[link] for result in results)
            for link in results[0].link_seconds
        },
    }
    return SweepRow(
        **common,
        sweep=sweep,
        levels=_levels(row.name, row.config),
        kind=kind_of(row.name, row.config),
        seeds=sorted(row.by_seed),
        difference=None if to_first is None else to_first.mean,
        spread=None if to_first is None else to_first.half_width,
        held_equal=_held_equal(reference.first, results[0]),
        perplexities=[result.perplexity for result in results],
        tune_perplexities=[
            result.tune_perplexity for result in results if result.tune_perplexity is not None
        ],
    )


def _mean(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return statistics.fmean(there) if there else None


def _levels(name: str, config: RunConfig) -> list[LevelSummary]:
    if "/" in name:  # a dense baseline of the row's run
        return [LevelSummary("all", SHARED, list(part_names(config.model)))]
    return [
        LevelSummary(level.name, level.experts, list(level.parts))
        for level in config.topology.levels
    ]


def _held_equal(one: ReportRow, other: ReportRow) -> list[str]:
    return [cost for cost in COSTS if getattr(one, cost) == getattr(other, cost)]


def _compare(one: NamedRow, other: NamedRow) -> Ordering | None:
    """The ordering of two rows. None if they have no common seed under which both are of the same
    text, or if a result is not finite.
    """
    interval = _difference(one, other)
    if interval is None:
        return None
    better, worse = (one, other) if interval.mean > 0 else (other, one)
    return Ordering(
        better=better.name,
        worse=worse.name,
        difference=abs(interval.mean),
        spread=interval.half_width,
        seeds=list(interval.seeds),
        resolved=interval.is_resolved,
        is_equal=all(one.perplexities[n] == other.perplexities[n] for n in interval.seeds),
        held_equal=_held_equal(one.first, other.first),
    )


def _difference(before: NamedRow, after: NamedRow) -> Interval | None:
    """The difference of two rows under the seeds for which both are of the same text. None without
    such a seed, or if a result is not finite.
    """
    seeds = seeds_alike(before, after)
    ones, others = ({n: row.perplexities[n] for n in seeds} for row in (before, after))
    interval = paired_difference(ones, others)
    return interval if interval is not None and math.isfinite(interval.mean) else None
