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
from dipaco.errors import BadSeeds, NoSuchRow
from dipaco.evaluation.paired import Interval, mean_interval, paired_difference
from dipaco.evaluation.tables import (
    Row,
    columns_as_markdown,
    columns_as_text,
    duration,
    quantity,
)
from dipaco.topology import SHARED

COSTS = ("steps", "tokens", "parameters_per_path", "flops")  # what rows may be held equal in


class Trial(NamedTuple):
    """A row of a sweep under one seed: one run."""

    row: str
    seed: int
    config: RunConfig

    def __str__(self) -> str:
        return f"{self.row}, seed {self.seed}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepRow(Row):
    """A `Row`, in the mean over its seeds (costs: of the first; seconds: the median)."""

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
    runs: list[Row]  # every run's own rows, as in its report
    missing: list[str]  # runs that are not finished
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
    sweep: str, trials: Sequence[Trial], results: Mapping[Trial, Sequence[Row]]
) -> SweepTable:
    """The table of a sweep.

    Args:
      sweep: its name.
      trials: of the rows that are asked for.
      results: the rows of each run's report; those of unfinished runs are left out.
    """
    configs = {trial.row: trial.config for trial in trials if trial in results}
    values: dict[str, dict[int, Row]] = {}  # name in the table -> seed -> row
    main: dict[str, str] = {}  # name in the table -> row of the sweep, without best paths
    for row in configs:
        for trial in (t for t in trials if t.row == row and t in results):
            for result in results[trial]:
                name = _name(row, result.name)
                if configs[row].num_paths == 1 and name != row and "/" not in name:
                    continue  # the best of one path
                values.setdefault(name, {})[trial.seed] = result
                if not result.name.endswith("_best_path"):
                    main[name] = row
    reference = next(iter(values), "")
    rows = [
        _sweep_row(sweep, name, by_seed, values[reference], configs[_owner(name, configs)])
        for name, by_seed in values.items()
    ]
    diloco = {
        _key(configs[row], values[name]): name
        for name, row in reversed(main.items())
        if name == row and is_diloco(configs[row])
    }
    to_diloco = {}
    for name, row in main.items():
        other = diloco.get(_key(configs[row], values[name]))
        if name == row and other not in (None, name) and configs[row].num_paths > 1:
            compared = _compare(other, values[other], name, values[name])
            if compared is not None:
                to_diloco[name] = compared
    pairs = (_compare(a, values[a], b, values[b]) for a, b in itertools.combinations(main, 2))
    return SweepTable(
        sweep=sweep,
        reference=reference,
        rows=rows,
        to_diloco=to_diloco,
        orderings=[pair for pair in pairs if pair is not None],
        runs=[
            dataclasses.replace(result, name=_name(trial.row, result.name))
            for trial in trials
            if trial in results
            for result in results[trial]
        ],
        missing=[str(trial) for trial in trials if trial not in results],
        notes=_notes(configs, main, to_diloco, has_best_paths=len(main) < len(values)),
    )


def render_sweep_text(table: SweepTable) -> str:
    """For a terminal."""
    return columns_as_text(*_columns(table)) + "\n\n" + "\n".join(ordering_lines(table))


def render_sweep_markdown(table: SweepTable) -> str:
    """The same as Markdown, with levels and notes."""
    levels = "\n".join(f"| {row.name} | {_levels(row)} |" for row in table.rows if _is_main(row))
    notes = "\n".join(f"- {note}" for note in table.notes)
    orderings = "\n".join(f"- {line}" for line in ordering_lines(table))
    missing = f"\nNot finished: {'; '.join(table.missing)}.\n" if table.missing else ""
    return f"""# Sweep {table.sweep}

{columns_as_markdown(*_columns(table))}
{missing}
{notes}

Orderings, by the paired difference over seeds:

{orderings}

| row | levels |
| :-- | :-- |
{levels}

![Perplexity against parameters, tokens and bytes sent](plot.png)
"""


def ordering_lines(table: SweepTable) -> list[str]:
    """Which row is below which, the largest resolved differences first, then the unresolved."""

    def line(ordering: Ordering, sign: str) -> str:
        spread = "" if ordering.spread is None else f" ± {ordering.spread:.2f}"
        return f"{ordering.better} {sign} {ordering.worse} by {ordering.difference:.2f}{spread}"

    ranked = sorted(table.orderings, key=lambda ordering: -ordering.difference)
    resolved = [line(o, "<") for o in ranked if o.resolved]
    others = [line(o, "?") for o in ranked if not o.resolved]
    lines = [f"resolved: {text}" for text in resolved]
    return lines + [f"not resolved: {text}" for text in others]


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


def _is_main(row: SweepRow) -> bool:
    return not row.name.endswith("_best_path")


def _key(config: RunConfig, by_seed: Mapping[int, Row]) -> tuple[int, int]:
    return config.num_paths, next(iter(by_seed.values())).tokens


def _sweep_row(
    sweep: str,
    name: str,
    by_seed: Mapping[int, Row],
    reference: Mapping[int, Row],
    config: RunConfig,
) -> SweepRow:
    rows = [by_seed[seed] for seed in sorted(by_seed)]
    first = next(iter(reference.values()))
    to_first = None
    if by_seed is not reference:
        to_first = paired_difference(_perplexities(reference), _perplexities(by_seed))
    common: dict[str, Any] = dataclasses.asdict(rows[0]) | {
        "name": name,
        "perplexity": statistics.fmean(row.perplexity for row in rows),
        "seconds": statistics.median(row.seconds for row in rows),
    }
    return SweepRow(
        **common,
        sweep=sweep,
        levels=[
            {"name": level.name, "experts": level.experts, "parts": list(level.parts)}
            for level in config.topology.levels
        ],
        seeds=sorted(by_seed),
        spread=None if to_first is None else to_first.half_width,
        held_equal=_held_equal(first, rows[0]),
        perplexities=[row.perplexity for row in rows],
    )


def _perplexities(by_seed: Mapping[int, Row]) -> dict[int, float]:
    return {seed: row.perplexity for seed, row in by_seed.items()}


def _held_equal(one: Row, other: Row) -> list[str]:
    return [cost for cost in COSTS if getattr(one, cost) == getattr(other, cost)]


def _compare(
    one: str, ones: Mapping[int, Row], other: str, others: Mapping[int, Row]
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


def _columns(table: SweepTable) -> tuple[list[str], list[list[str]]]:
    headings = [
        "row",
        "seeds",
        "perplexity",
        f"to {table.reference or 'first'}",
        "to DiLoCo",
        "path size",
        "total size",
        "steps",
        "tokens",
        "flops",
        "bytes sent",
        "time",
        "held equal",
    ]
    by_name = {row.name: row for row in table.rows}
    return headings, [_cells(table, row, by_name) for row in table.rows]


def _cells(table: SweepTable, row: SweepRow, by_name: Mapping[str, SweepRow]) -> list[str]:
    first = by_name[table.reference]
    own = mean_interval(dict(zip(row.seeds, row.perplexities, strict=True)))
    if row is first:
        to_first, held = "", ""
    else:
        difference = paired_difference(
            dict(zip(first.seeds, first.perplexities, strict=True)),
            dict(zip(row.seeds, row.perplexities, strict=True)),
        )
        to_first = "" if difference is None else _difference(difference)
        held = ", ".join(row.held_equal).replace("parameters_per_path", "path size")
    against = table.to_diloco.get(row.name)
    return [
        row.name,
        str(len(row.seeds)),
        f"{own.mean:.2f}",
        to_first,
        "" if against is None else _signed(against, row.name),
        quantity(row.parameters_per_path),
        quantity(row.parameters_total),
        f"{row.steps:,}",
        quantity(row.tokens),
        quantity(row.flops),
        f"{quantity(row.bytes_sent)}B" if row.bytes_sent else "0",
        duration(row.seconds),
        held,
    ]


def _signed(ordering: Ordering, row: str) -> str:
    sign = -1 if ordering.better == row else 1
    return _difference(Interval(sign * ordering.difference, ordering.spread, tuple(ordering.seeds)))


def _difference(interval: Interval) -> str:
    if interval.half_width is None:
        return f"{interval.mean:+.2f}"
    mark = "" if interval.is_resolved else " (not resolved)"
    return f"{interval.mean:+.2f} ± {interval.half_width:.2f}{mark}"


def _levels(row: SweepRow) -> str:
    def one(level: dict[str, Any]) -> str:
        number = {0: "one per path", 1: "shared"}.get(level["experts"], f"{level['experts']}")
        return f"{level['name']} ({number}): {', '.join(level['parts']) or 'nothing'}"

    return "; ".join(one(level) for level in row.levels)


def _notes(
    configs: Mapping[str, RunConfig],
    main: Mapping[str, str],
    to_diloco: Mapping[str, Ordering],
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
    notes = [
        "perplexity is the mean over seeds; ± is half the 95 % interval of the difference, paired "
        "by seed (Student's t). A difference is resolved where its interval excludes zero; of many "
        "comparisons, one in twenty would be by chance.",
        "to DiLoCo: against DiLoCo of as many paths and tokens, which has the same data and outer "
        "step and shares everything. That difference is what modules bring.",
        "held equal: what the row has in common with the first; a difference in anything else "
        "may be what made it better or worse.",
    ]
    if has_best_paths:
        notes.append(
            "NAME_best_path picks each document's path after the fact: a bound that no router can "
            "reach. It takes no part in the orderings."
        )
    if alone:
        notes.append(
            f"Without a DiLoCo row of as many paths and tokens in this sweep: {', '.join(alone)}."
        )
    return notes
