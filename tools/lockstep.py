"""Paths against as many machines in lock-step, from tables of sweeps: perplexity by tokens, by
bytes and by hours.

    python tools/lockstep.py runs/lockstep/table.json --links 20
    python tools/lockstep.py runs/lockstep/table.json runs/vocabulary/table.json --also ensemble

Rows are called as in `configs/ablations/lockstep.py`: `data_parallel P rate RATE phases N` against
`KxK ANYTHING rate RATE phases N` with K x K = P. At every budget a contender comes with the rate
that was best for it on tune documents. All are given the same time for a step, the median of what
was measured, since a machine of either side does the same work in it. Its bytes follow, one after
another, over a link that carries so much up and down together. No transfer overlaps computing.
"""

import math
import re
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from support.command_line import parser_of

from dipaco.evaluation.tables import columns_as_markdown, num_bytes, seconds_over_link
from dipaco.sweeps.table import SweepRow, SweepTable, by_seed, tune_by_seed

LOCK_STEP = re.compile(r"data_parallel (\d+)")
ROW = re.compile(r"(?P<name>.+?)( rate (?P<rate>[\d.e-]+))?( phases (?P<phases>\d+))?")
SHOWN = ("by_features", "by_likelihood")  # shown variants
HOUR_SECONDS = 3600


class Tried(NamedTuple):
    """A contender at one budget and one peak rate."""

    perplexity: float
    tune: float  # the perplexity by which a rate is chosen
    rate: float
    row: SweepRow


# contender -> phases of a path -> tries, the best rate first
Tries = dict[str, dict[int, list[Tried]]]


def tries(rows: Sequence[SweepRow], rate: float, phases: int) -> Tries:
    """All contenders at all budgets.

    Args:
      rows: of a table. Those that are routed otherwise, as `NAME rate RATE phases N_by_likelihood`,
        are contenders of their own: `NAME_by_likelihood`.
      rate: of a row whose name says nothing of it.
      phases: likewise.
    """
    found: Tries = {}
    seeds = set.intersection(*(set(row.seeds) for row in rows)) if rows else set()
    if not seeds:
        print("These rows have no seed in common: there is nothing to compare.", file=sys.stderr)
        sys.exit(2)
    for row in rows:
        suffix = f"_{row.variant}" if row.variant else ""
        match = ROW.fullmatch(row.arm)
        assert match is not None, "every part but the name may be missing"
        means = (_mean(of_seed, seeds) for of_seed in (by_seed(row), tune_by_seed(row)))
        tried = Tried(*means, float(match["rate"] or rate), row)
        of_name = found.setdefault(match["name"] + suffix, {})
        of_name.setdefault(int(match["phases"] or phases), []).append(tried)
    for of_name in found.values():
        for tried in of_name.values():
            tried.sort(key=lambda each: (each.tune, each.rate))
    return found


def _mean(of_seed: Mapping[int, float], seeds: set[int]) -> float:
    return statistics.mean(of_seed[seed] for seed in seeds)


class Point(NamedTuple):
    """A contender's result at one budget and its best rate, with the cost for a machine."""

    phases: int
    perplexity: float
    rate: float
    rates: tuple[float, ...]  # all tried rates, ascending
    tokens: float  # all machines' tokens for each parameter of a path
    num_bytes: int
    seconds: float  # computing alone

    def hours(self, megabits: float) -> float:
        return seconds_over_link(self.seconds, self.num_bytes, megabits) / HOUR_SECONDS


Curves = dict[str, list[Point]]  # contender -> its points, budgets ascending. Lock-step is first.


def curves_of(found: Tries, machines: int, also: Sequence[str] = ()) -> Curves:
    """The contenders of so many machines."""
    k = math.isqrt(machines)
    names = [
        name for name in found if name.startswith(f"{k}x{k} ") and _is_shown(found[name], also)
    ]
    chosen = {name: found[name] for name in (f"data_parallel {machines}", *sorted(names))}
    rows = [each.row for of_name in chosen.values() for tried in of_name.values() for each in tried]
    of_a_step = statistics.median(row.machine_seconds / row.steps for row in rows)
    size = min(row.parameters_per_path for row in rows)  # ensembles read more than a path
    return {
        name: [
            Point(
                phases,
                tried[0].perplexity,
                tried[0].rate,
                tuple(sorted(each.rate for each in tried)),
                tried[0].row.tokens / size,
                tried[0].row.bytes_per_machine,
                tried[0].row.steps * of_a_step,
            )
            for phases, tried in sorted(of_name.items())
        ]
        for name, of_name in chosen.items()
    }


def _is_shown(of_name: Mapping[int, Sequence[Tried]], also: Sequence[str]) -> bool:
    variants = {each.row.variant for tried in of_name.values() for each in tried}
    return variants <= {"", *SHOWN, *also}


def table(curves: Curves, links: Sequence[float]) -> str:
    """Markdown: a line for every contender at every budget."""
    lock_step, *_ = curves.values()
    bar = {point.phases: point.perplexity for point in lock_step}
    headings = ["phases", "tokens a parameter", "row", "perplexity (rate)", "to lock-step", "bytes"]
    lines = []
    for phases in sorted({point.phases for points in curves.values() for point in points}):
        for name, points in curves.items():
            for point in (point for point in points if point.phases == phases):
                gap = f"{point.perplexity / bar[phases] - 1:+.1%}" if phases in bar else ""
                lines.append(
                    [
                        str(phases),
                        f"{point.tokens:.1f}",
                        name,
                        f"{point.perplexity:.2f} ({point.rate:g})",
                        gap if points is not lock_step else "",
                        num_bytes(point.num_bytes),
                        *(f"{point.hours(link):.3g}" for link in links),
                    ]
                )
    return columns_as_markdown([*headings, *(f"hours at {link:g}" for link in links)], lines)


def crossings(curves: Curves) -> list[str]:
    """Lines that say at which equal tokens each contender is ahead of lock-step."""
    (lock_step, points), *others = curves.items()
    bar = {point.phases: point.perplexity for point in points}
    lines = []
    for name, theirs in others:
        gaps = {p.phases: p.perplexity / bar[p.phases] - 1 for p in theirs if p.phases in bar}
        ahead = [phases for phases, gap in gaps.items() if gap < 0]
        verdict = f"ahead at {_listed(ahead)} phases" if ahead else "behind throughout"
        shown = ", ".join(f"{gap:+.1%} at {phases}" for phases, gap in gaps.items())
        lines.append(f"- {name}: {verdict} of {lock_step} ({shown})" if gaps else f"- {name}: none")
    return lines


def within(curves: Curves, megabits: float) -> list[str]:
    """Lines with the others' results in the hours that lock-step needs for each of its budgets."""
    (_, points), *others = curves.items()
    lines = []
    for bar in points:
        hours = bar.hours(megabits)
        reached = []
        for name, theirs in others:
            done = [point for point in theirs if point.hours(megabits) <= hours]
            if done:
                best = min(done, key=lambda point: point.perplexity)
                reached.append(f"{name} {best.perplexity:.2f} ({best.phases} phases)")
        lines.append(
            f"- {hours:.3g} hours at {megabits:g} Mbit/s: lock-step {bar.perplexity:.2f} "
            f"({bar.phases} phases); {', '.join(reached) or 'nobody else is done'}"
        )
    return lines


def untuned(curves: Curves) -> list[str]:
    """Contenders whose best rate is the first or the last tried, so that a better one may lie
    beyond.
    """
    return [
        f"- {name}, {point.phases} phases: best at {point.rate:g}, of {_listed(point.rates)}"
        for name, points in curves.items()
        for point in points
        if point.rate in (point.rates[0], point.rates[-1])
    ]


def _listed(numbers: Iterable[float]) -> str:
    return ", ".join(f"{number:g}" for number in numbers)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("tables", nargs="+", type=Path, help="`table.json` of sweeps")
    parser.add_argument("--links", nargs="+", type=float, default=[20.0, 100.0], metavar="MEGABITS")
    parser.add_argument("--also", nargs="+", default=[], metavar="VARIANT", help="as best_path")
    options = parser.parse_args()
    rows: dict[str, SweepRow] = {}  # a row of the same name in several tables counts once
    for file in options.tables:
        try:
            table_of_file = msgspec.json.decode(file.read_bytes(), type=SweepTable)
        except (OSError, msgspec.DecodeError) as error:
            parser.error(
                f"{file} is no table of this version ({error}). `dipaco ablate` writes it again."
            )
        rows |= {row.name: row for row in table_of_file.rows}
    found = tries(list(rows.values()), rate=0.0, phases=0)
    numbers = [int(match[1]) for match in map(LOCK_STEP.fullmatch, found) if match]
    if not numbers:
        parser.error("There is no row `data_parallel P rate RATE phases N` in these tables.")
    all_curves = {number: curves_of(found, number, options.also) for number in sorted(numbers)}
    for number, curves in all_curves.items():
        print(f"{number} machines\n\n{table(curves, options.links)}\n")
        print("At equal tokens:\n\n" + "\n".join(crossings(curves)) + "\n")
        print("At equal hours:\n")
        print("\n".join(line for link in options.links for line in within(curves, link)) + "\n")
        if lines := untuned(curves):
            print("Not tuned to the end:\n\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
