"""A sweep: rows under several seeds, and the table that they come to.

Given the reports of the runs that are finished, whoever ran them. A row is compared with the first
row, with DiLoCo of as many paths and tokens, which differs from it in what is shared and nothing
else, and with every other row; differences are paired by seed (`paired.py`).
"""

import dataclasses
import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from dipaco.config import MODULAR, RunConfig
from dipaco.evaluation.tables import ReportRow
from dipaco.model.config import part_names
from dipaco.sweeps.errors import BadSeeds, NoSuchRow
from dipaco.sweeps.pairing import paired_difference
from dipaco.topology import SHARED

BEST_PATH = "_best_path"  # how the name of such a row of a report ends
OF_ITS_OWN = ("name", "seed", "topology", "phases", "baselines", "evaluation", "reroute")
COSTS = ("steps", "tokens", "parameters_per_path", "flops")  # what rows may be held equal in


class Trial(NamedTuple):
    """A row of a sweep under one seed: one run."""

    row: str
    seed: int
    config: RunConfig

    def __str__(self) -> str:
        return f"{self.row}, seed {self.seed}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepRow(ReportRow):
    """A `ReportRow`, in the mean over its seeds (costs: of the first; seconds: the median)."""

    sweep: str
    levels: list[dict[str, Any]]  # name, experts (1 = shared, 0 = one per path), parts
    seeds: list[int]  # those that are finished
    spread: (
        float | None
    )  # half-width of the 95 % interval of the paired difference to the first row
    held_equal: list[str]  # which of COSTS are those of the first row
    perplexities: list[float]  # one a seed


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ordering:
    """How two rows compare."""

    better: str
    worse: str
    difference: float  # perplexity of `worse` - `better`, mean over paired seeds
    spread: float | None  # half-width of its 95 % interval
    seeds: list[int]
    resolved: bool  # whether the interval excludes zero
    held_equal: list[str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepTable:
    """All that `dipaco ablate` has to say."""

    sweep: str
    reference: str  # the first row, which `spread` and `held_equal` of the others refer to
    rows: list[SweepRow]
    to_diloco: dict[str, Ordering]  # modular row -> against DiLoCo of as many paths and tokens
    orderings: list[Ordering]  # of every two rows
    runs: list[ReportRow]  # every run's own rows, as in its report
    missing: list[str]  # runs that are not finished
    apart: list[str]  # rows on other text than the reference, which are not compared with it
    notes: list[str]

    def to_json(self) -> bytes:
        """UTF-8 JSON, indented."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"


def trials_of(
    sweep: str, rows: Mapping[str, RunConfig], seeds: Sequence[int], only: Sequence[str] = ()
) -> list[Trial]:
    """The runs of a sweep, seed by seed, so that every row has a first result early.

    Raises:
      NoSuchRow: `only` names one that is not there.
    """
    for name in only:
        if name not in rows:
            raise NoSuchRow(sweep=sweep, name=name, known=", ".join(rows))
    return [
        Trial(name, seed, dataclasses.replace(config, name=f"{sweep} {name}", seed=seed))
        for seed in seeds
        for name, config in rows.items()
        if not only or name in only
    ]


def seeds_of(text: str) -> list[int]:
    """`0,1,2` -> [0, 1, 2]. Raises `BadSeeds`."""
    seeds: list[int] = []
    for word in text.split(","):
        if not word.strip().isdecimal() or int(word) >= 2**63:
            raise BadSeeds(given=text, problem=f"`{word.strip()}` is no seed")
        if int(word) in seeds:
            raise BadSeeds(
                given=text, problem=f"{int(word)} is there twice, and would count as two"
            )
        seeds.append(int(word))
    return seeds


def is_diloco(config: RunConfig) -> bool:
    """Several paths that share every part, and meet at outer steps."""
    owning = [level for level in config.topology.levels if level.parts]
    all_is_shared = all(level.experts == SHARED for level in owning)
    return config.num_paths > 1 and all_is_shared and not config.outer.synchronous


def make_table(
    sweep: str, trials: Sequence[Trial], results: Mapping[Trial, Sequence[ReportRow]]
) -> SweepTable:
    """The table of a sweep.

    Args:
      sweep: its name.
      trials: of the rows that are asked for.
      results: the rows of each run's report; those of unfinished runs are left out.
    """
    configs = {trial.row: trial.config for trial in trials if trial in results}
    values: dict[str, dict[int, ReportRow]] = {}  # name in the table -> seed -> row
    main: dict[str, str] = {}  # name in the table -> row of the sweep, without best paths
    for row in configs:
        for trial in (t for t in trials if t.row == row and t in results):
            for result in results[trial]:
                name = _name(row, result.name)
                if configs[row].num_paths == 1 and name != row and "/" not in name:
                    continue  # the best of one path
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
    """The row of the sweep that a name in the table belongs to; the longest that fits."""
    fitting = [row for row in rows if name == row or name.startswith((f"{row}_", f"{row}/"))]
    return max(fitting, key=len)


def _diloco_of(
    name: str, values: Mapping[str, Mapping[int, ReportRow]], configs: Mapping[str, RunConfig]
) -> str | None:
    """The DiLoCo row of as many paths and tokens on the same text, and of those the one that has
    the most settings in common.
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
    """Groups of settings in which two rows differ, but for what is shared."""
    return [
        field.name
        for field in dataclasses.fields(RunConfig)
        if field.name not in OF_ITS_OWN and getattr(one, field.name) != getattr(other, field.name)
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


def _levels(name: str, config: RunConfig) -> list[dict[str, Any]]:
    if "/" in name:  # a dense baseline of the row's run
        return [{"name": "all", "experts": SHARED, "parts": list(part_names(config.model))}]
    return [
        {"name": level.name, "experts": level.experts, "parts": list(level.parts)}
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
