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

from dipaco.config import DATA_PARALLEL, DENSE, MODULAR, RunConfig
from dipaco.evaluation.style import DILOCO
from dipaco.evaluation.tables import ReportRow
from dipaco.model.config import part_names
from dipaco.sweeps.bootstrap import Drawn, Spread, interval_over_texts
from dipaco.sweeps.notes import is_diloco, is_one_model, num_differing, shares_all, table_notes
from dipaco.sweeps.pairing import are_equal, paired_difference
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
    spread: float | None  # half-width of the difference to the first row (95 %, paired)
    held_equal: list[str]  # the COSTS that equal those of the first row
    perplexities: list[float]  # one a seed
    # Of the difference to the first row: ends of another 95 % interval, over validation texts.
    over_texts: Spread | None = None
    kind: str = MODULAR  # of model: an arm of a run, or `DiLoCo`


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ordering:
    """The comparison of two rows."""

    better: str
    worse: str
    difference: float  # perplexity of `worse` - `better`, mean over paired seeds
    spread: float | None  # half-width of its 95 % interval; None with fewer than three seeds
    seeds: list[int]
    resolved: bool  # whether the interval excludes zero
    is_equal: bool  # the same perplexity under every seed: one run, or two of equal settings
    held_equal: list[str]
    over_texts: Spread | None = None  # ends of another 95 % interval: over texts


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


def make_table(
    sweep: str,
    trials: Sequence[Trial],
    results: Mapping[Trial, Sequence[ReportRow]],
    drawn: Mapping[Trial, Mapping[str, Drawn]] | None = None,
) -> SweepTable:
    """The table of a sweep.

    Args:
      sweep: its name.
      trials: the runs in the table, finished or not.
      results: trial -> the rows of its report; unfinished trials are absent.
      drawn: trial -> arm -> its perplexities on drawings of texts, for the intervals over
        texts; absent trials have none.
    """
    configs = {trial.row: trial.config for trial in trials if trial in results}
    values: dict[str, dict[int, ReportRow]] = {}  # name in the table -> seed -> row
    on_drawings: dict[str, dict[int, Drawn]] = {}  # name in the table -> seed -> run
    main: dict[str, str] = {}  # name in the table -> row of the sweep, without variants
    for row in configs:
        for trial in (t for t in trials if t.row == row and t in results):
            for result in results[trial]:
                name = _name(row, result.name)
                if is_one_model(configs[row]) and name != row and "/" not in name:
                    continue  # however a document is routed, it is predicted by the same parameters
                values.setdefault(name, {})[trial.seed] = result
                if not result.variant:
                    main[name] = row
                of_arm = (drawn or {}).get(trial, {}).get(result.name)
                on_drawings.setdefault(name, {}).update({trial.seed: of_arm} if of_arm else {})
    reference = next(iter(values), "")
    config_of = {name: configs[_owner(name, configs)] for name in values}
    apart = [name for name in values if config_of[name].data != config_of[reference].data]
    to_diloco = {}
    for name, row in main.items():
        other = _diloco_of(name, values, configs) if name == row else None
        if other is not None:
            compared = _compare(other, name, values, on_drawings)
            if compared is not None:
                to_diloco[name] = compared
    pairs = (
        _compare(a, b, values, on_drawings)
        for a, b in itertools.combinations(main, 2)
        if config_of[a].data == config_of[b].data
    )
    return SweepTable(
        sweep=sweep,
        reference=reference,
        rows=[
            _sweep_row(
                sweep,
                name,
                values,
                on_drawings,
                reference,
                config_of[name],
                is_apart=name in apart,
            )
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
        notes=table_notes(
            configs,
            main,
            {
                name: against.worse if against.better == name else against.better
                for name, against in to_diloco.items()
            },
            [name for name in apart if name in main],
            has_variants=len(main) < len(values),
            num_seeds=max((len(by_seed) for by_seed in values.values()), default=0),
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
    return min(fitting, key=lambda other: num_differing(config, configs[other]), default=None)


def _tokens(by_seed: Mapping[int, ReportRow]) -> int:
    return next(iter(by_seed.values())).tokens


def _sweep_row(
    sweep: str,
    name: str,
    values: Mapping[str, Mapping[int, ReportRow]],
    on_drawings: Mapping[str, Mapping[int, Drawn]],
    reference: str,
    config: RunConfig,
    *,
    is_apart: bool,
) -> SweepRow:
    by_seed = values[name]
    rows = [by_seed[seed] for seed in sorted(by_seed)]
    to_first = over_texts = None
    if name != reference and not is_apart:
        to_first = paired_difference(_perplexities(values[reference]), _perplexities(by_seed))
        seeds = () if to_first is None else to_first.seeds
        over_texts = interval_over_texts(on_drawings[reference], on_drawings[name], seeds)
    common: dict[str, Any] = dataclasses.asdict(rows[0]) | {
        "name": name,
        "perplexity": statistics.fmean(row.perplexity for row in rows),
        "wrong_path_perplexity": _mean([row.wrong_path_perplexity for row in rows]),
        "seconds": statistics.median(row.seconds for row in rows),
        "machine_seconds": statistics.median(row.machine_seconds for row in rows),
        "link_seconds": {
            link: statistics.median(row.link_seconds[link] for row in rows)
            for link in rows[0].link_seconds
        },
    }
    return SweepRow(
        **common,
        sweep=sweep,
        levels=_levels(name, config),
        kind=_kind(name, config),
        seeds=sorted(by_seed),
        spread=None if to_first is None else to_first.half_width,
        held_equal=_held_equal(next(iter(values[reference].values())), rows[0]),
        perplexities=[row.perplexity for row in rows],
        over_texts=over_texts,
    )


def _mean(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return statistics.fmean(there) if there else None


def _kind(name: str, config: RunConfig) -> str:
    """`dense`, `data_parallel`, ...: what is trained, whatever a row is called."""
    if "/" in name:  # a dense baseline of the row's run
        return name.rpartition("/")[2]
    if config.num_paths == 1:
        return DENSE
    if is_diloco(config):
        return DILOCO
    return DATA_PARALLEL if shares_all(config) else MODULAR


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
    one: str,
    other: str,
    values: Mapping[str, Mapping[int, ReportRow]],
    on_drawings: Mapping[str, Mapping[int, Drawn]],
) -> Ordering | None:
    ones, others = values[one], values[other]
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
        is_equal=are_equal(_perplexities(ones), _perplexities(others)),
        over_texts=interval_over_texts(on_drawings[better], on_drawings[worse], interval.seeds),
        held_equal=_held_equal(next(iter(ones.values())), next(iter(others.values()))),
    )
