"""The table of a sweep, from the reports of its finished runs.

Each row is compared with the first row, with every other row, and with the DiLoCo row of as many
paths and tokens, from which it differs only in what is shared. Differences are paired by seed
(`pairing.py`).
"""

import dataclasses
import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from dipaco.config import MODULAR, RunConfig
from dipaco.evaluation.tables import ReportRow
from dipaco.model.config import part_names
from dipaco.sweeps.pairing import paired_difference
from dipaco.sweeps.trials import Trial
from dipaco.topology import SHARED

BEST_PATH = "_best_path"  # suffix of a report's row for the best path of each document
ROW_SETTINGS = ("name", "seed", "topology", "phases", "baselines", "evaluation", "reroute")
COSTS = ("steps", "tokens", "parameters_per_path", "flops")  # the costs in which rows may be equal


@dataclasses.dataclass(frozen=True)
class LevelSummary:
    """A level of a row's topology."""

    name: str
    experts: int  # 1 = shared, 0 = one per path
    parts: list[str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepRow(ReportRow):
    """A `ReportRow` over all seeds: mean perplexity, median seconds, the first seed's costs."""

    sweep: str
    levels: list[LevelSummary]
    seeds: list[int]  # the finished ones
    spread: float | None  # half-width of the difference to the first row (95 %, paired)
    held_equal: list[str]  # the COSTS that equal those of the first row
    perplexities: list[float]  # one a seed


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ordering:
    """The comparison of two rows."""

    better: str
    worse: str
    difference: float  # perplexity of `worse` - `better`, mean over paired seeds
    spread: float | None  # half-width of its 95 % interval
    seeds: list[int]
    resolved: bool  # whether the interval excludes zero
    held_equal: list[str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepTable:
    """What `dipaco ablate` writes."""

    sweep: str
    reference: str  # the first row; `spread` and `held_equal` of the others refer to it
    rows: list[SweepRow]
    to_diloco: dict[str, Ordering]  # modular row -> against DiLoCo of as many paths and tokens
    orderings: list[Ordering]  # of every pair of rows
    runs: list[ReportRow]  # the rows of every run's report
    missing: list[str]  # unfinished runs
    apart: list[str]  # rows on other text than the reference; not compared with it
    notes: list[str]

    def to_json(self) -> bytes:
        """UTF-8 JSON, indented."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"


def is_diloco(config: RunConfig) -> bool:
    """Whether several paths share every part, and are averaged at outer steps."""
    owning = [level for level in config.topology.levels if level.parts]
    all_is_shared = all(level.experts == SHARED for level in owning)
    return config.num_paths > 1 and all_is_shared and not config.outer.synchronous


def make_table(
    sweep: str, trials: Sequence[Trial], results: Mapping[Trial, Sequence[ReportRow]]
) -> SweepTable:
    """The table of a sweep.

    Args:
      sweep: its name.
      trials: the runs in the table, finished or not.
      results: trial -> the rows of its report; unfinished trials are absent.
    """
    configs = {trial.row: trial.config for trial in trials if trial in results}
    values: dict[str, dict[int, ReportRow]] = {}  # name in the table -> seed -> row
    main: dict[str, str] = {}  # name in the table -> row of the sweep, without best paths
    for row in configs:
        for trial in (t for t in trials if t.row == row and t in results):
            for result in results[trial]:
                name = _name(row, result.name)
                if configs[row].num_paths == 1 and name != row and "/" not in name:
                    continue  # one path is its own best path
                values.setdefault(name, {})[trial.seed] = result
                if not result.name.endswith(BEST_PATH):
                    main[name] = row
    reference = next(iter(values), "")
    config_of = {name: configs[_owner(name, configs)] for name in values}
    apart = [name for name in values if config_of[name].data != config_of[reference].data]
    to_diloco = {}
    for name, row in main.items():
        other = _diloco_of(name, values, configs) if name == row else None
        if other is not None:
            compared = _compare(other, values[other], name, values[name])
            if compared is not None:
                to_diloco[name] = compared
    pairs = (
        _compare(a, values[a], b, values[b])
        for a, b in itertools.combinations(main, 2)
        if config_of[a].data == config_of[b].data
    )
    return SweepTable(
        sweep=sweep,
        reference=reference,
        rows=[
            _sweep_row(sweep, name, values, reference, config_of[name], is_apart=name in apart)
            for name in values
        ],
        to_diloco=to_diloco,
        orderings=[pair for pair in pairs if pair is not None],
        runs=[
            dataclasses.replace(result, name=_name(trial.row, result.name))
            for trial in trials
            if trial in results
            for result in results[trial]
        ],
        missing=[str(trial) for trial in trials if trial not in results],
        apart=apart,
        notes=_notes(
            configs,
            main,
            to_diloco,
            [name for name in apart if name in main],
            has_best_paths=len(main) < len(values),
        ),
    )


def _name(row: str, result: str) -> str:
    if result == MODULAR:
        return row
    if result.startswith(f"{MODULAR}_"):
        return row + result.removeprefix(MODULAR)
    return f"{row}/{result}"


def _owner(name: str, rows: Iterable[str]) -> str:
    """The row of the sweep that a name in the table belongs to: the longest prefix."""
    fitting = [row for row in rows if name == row or name.startswith((f"{row}_", f"{row}/"))]
    return max(fitting, key=len)


def _diloco_of(
    name: str, values: Mapping[str, Mapping[int, ReportRow]], configs: Mapping[str, RunConfig]
) -> str | None:
    """The DiLoCo row of as many paths and tokens on the same text; of several, the one with most
    settings in common.
    """
    config, tokens = configs[name], _tokens(values[name])
    fitting = [
        other
        for other in configs
        if other != name
        and is_diloco(configs[other])
        and configs[other].num_paths == config.num_paths > 1
        and configs[other].data == config.data
        and _tokens(values[other]) == tokens
    ]
    return min(fitting, key=lambda other: len(_differing(config, configs[other])), default=None)


def _tokens(by_seed: Mapping[int, ReportRow]) -> int:
    return next(iter(by_seed.values())).tokens


def _differing(one: RunConfig, other: RunConfig) -> list[str]:
    """Groups of settings in which two rows differ, apart from what is shared."""
    return [
        field.name
        for field in dataclasses.fields(RunConfig)
        if field.name not in ROW_SETTINGS and getattr(one, field.name) != getattr(other, field.name)
    ]


def _sweep_row(
    sweep: str,
    name: str,
    values: Mapping[str, Mapping[int, ReportRow]],
    reference: str,
    config: RunConfig,
    *,
    is_apart: bool,
) -> SweepRow:
    by_seed = values[name]
    rows = [by_seed[seed] for seed in sorted(by_seed)]
    to_first = None
    if name != reference and not is_apart:
        to_first = paired_difference(_perplexities(values[reference]), _perplexities(by_seed))
    common: dict[str, Any] = dataclasses.asdict(rows[0]) | {
        "name": name,
        "perplexity": statistics.fmean(row.perplexity for row in rows),
        "seconds": statistics.median(row.seconds for row in rows),
    }
    return SweepRow(
        **common,
        sweep=sweep,
        levels=_levels(name, config),
        seeds=sorted(by_seed),
        spread=None if to_first is None else to_first.half_width,
        held_equal=_held_equal(next(iter(values[reference].values())), rows[0]),
        perplexities=[row.perplexity for row in rows],
    )


def _levels(name: str, config: RunConfig) -> list[LevelSummary]:
    if "/" in name:  # a dense baseline of the row's run
        return [LevelSummary("all", SHARED, list(part_names(config.model)))]
    return [
        LevelSummary(level.name, level.experts, list(level.parts))
        for level in config.topology.levels
    ]


def _perplexities(by_seed: Mapping[int, ReportRow]) -> dict[int, float]:
    return {seed: row.perplexity for seed, row in by_seed.items()}


def _held_equal(one: ReportRow, other: ReportRow) -> list[str]:
    return [cost for cost in COSTS if getattr(one, cost) == getattr(other, cost)]


def _compare(
    one: str, ones: Mapping[int, ReportRow], other: str, others: Mapping[int, ReportRow]
) -> Ordering | None:
    interval = paired_difference(_perplexities(ones), _perplexities(others))
    if interval is None:
        return None
    better, worse = (one, other) if interval.mean > 0 else (other, one)
    return Ordering(
        better=better,
        worse=worse,
        difference=abs(interval.mean),
        spread=interval.half_width,
        seeds=list(interval.seeds),
        resolved=interval.is_resolved,
        held_equal=_held_equal(next(iter(ones.values())), next(iter(others.values()))),
    )


def _notes(
    configs: Mapping[str, RunConfig],
    main: Mapping[str, str],
    to_diloco: Mapping[str, Ordering],
    apart: Sequence[str],
    *,
    has_best_paths: bool,
) -> list[str]:
    alone = [
        name
        for name, row in main.items()
        if name == row
        and configs[row].num_paths > 1
        and not is_diloco(configs[row])
        and name not in to_diloco
    ]
    differing: dict[str, list[str]] = {}  # groups of settings -> rows
    for name, against in to_diloco.items():
        other = against.worse if against.better == name else against.better
        if settings := ", ".join(_differing(configs[name], configs[other])):
            differing.setdefault(settings, []).append(name)
    notes = [
        "perplexity is the mean over seeds; ± is half the 95 % interval of the difference, paired "
        "by seed (Student's t). A difference is resolved where its interval excludes zero; of many "
        "comparisons, one in twenty would be by chance.",
        "to DiLoCo: against the DiLoCo row of as many paths and tokens on the same text, which "
        "shares everything. That difference is what modules bring, where nothing else differs.",
        "held equal: what the row has in common with the first; a difference in anything else "
        "may be what made it better or worse.",
    ]
    notes += [
        f"That DiLoCo row has other settings also under {settings}: {', '.join(names)}."
        for settings, names in differing.items()
    ]
    if has_best_paths:
        notes.append(
            f"NAME{BEST_PATH} picks each document's path after the fact: a bound that no router "
            "can reach. It takes no part in the orderings."
        )
    if alone:
        notes.append(
            f"Without a DiLoCo row of as many paths and tokens in this table: {', '.join(alone)}."
        )
    if apart:
        notes.append(
            f"On other text than the first row, and not compared with it: {', '.join(apart)}."
        )
    return notes
