"""Two races from the table of a sweep: paths against dense models at every budget.

    python tools/race.py runs/reproduction/table.json

At equal steps: against dense models of 1, 2 and 4 times a path's size. At equal total compute:
against one dense model of a path's size, with the steps of all paths together. Rows are called
`NAME rate RATE phases N`, as in `configs/ablations/reproduction.py`; at every budget everybody
comes with the rate that was best for it.
"""

import argparse
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from support.curves import tries

from dipaco.evaluation.tables import BEST_PATH
from dipaco.sweeps.table import SweepRow, SweepTable

PATHS = ("2x2", "flat 4", "2x2 private plain")
SIZES = ("dense 1x", "dense size 2x", "dense size 4x")  # each twice the one before
EQUAL_COMPUTE = "dense 4x"  # the steps of four paths
REGIME = 0.10  # what doubling a dense model must bring, for size to be what is missing


class Entry(NamedTuple):
    """Who came how far at one budget, and at which peak rate."""

    perplexity: float
    rate: float
    rates: int  # that were tried


Curves = dict[str, dict[int, Entry]]  # name, phases of a path


def best(rows: Iterable[SweepRow], rate: float, phases: int) -> Curves:
    """The best rate of everybody at every budget, in the mean over the seeds that all have. `rate`
    and `phases` are those of a row whose name says nothing of them.
    """
    racing = [row for row in rows if row.variant != BEST_PATH]
    return {
        name: {
            budget: Entry(tried[0].perplexity, tried[0].rate, len(tried))
            for budget, tried in of_name.items()
        }
        for name, of_name in tries(racing, rate, phases).items()
    }


def race(title: str, curves: Curves, names: Sequence[str]) -> list[str]:
    """A Markdown table, a column per budget, and who wins each."""
    budgets = sorted(set.intersection(*(set(curves.get(name, {})) for name in names)))
    if not budgets:
        missing = ", ".join(name for name in names if name not in curves)
        return [f"{title}: no budget at which all of them have run. Missing: {missing or 'some'}"]
    cells = [[title, *(f"{budget} phases" for budget in budgets)]]
    cells.append([":--", *["--:"] * len(budgets)])
    for name in names:
        entries = [curves[name][budget] for budget in budgets]
        cells.append([name, *(f"{entry.perplexity:.2f} ({entry.rate:g})" for entry in entries)])
    first = [min(names, key=lambda name: curves[name][budget]) for budget in budgets]
    cells.append(["**first**", *(f"**{name}**" for name in first)])
    return [f"| {' | '.join(line)} |" for line in cells]


def regimes(curves: Curves) -> list[str]:
    """Whether a larger dense model is better by so much that size is what is missing."""
    lines = []
    for smaller, larger in itertools.pairwise(SIZES):
        for budget in sorted(set(curves.get(smaller, {})) & set(curves.get(larger, {}))):
            gain = 1 - curves[larger][budget].perplexity / curves[smaller][budget].perplexity
            verdict = "" if gain >= REGIME else ": not in that regime"
            lines.append(
                f"- {budget} phases: {larger} is {gain:+.1%} better than {smaller}{verdict}"
            )
    return lines


def crossings(curves: Curves, one: str, other: str) -> str:
    """Where the lead changes between two of them."""
    budgets = sorted(set(curves.get(one, {})) & set(curves.get(other, {})))
    if not budgets:
        return f"- {one}, {other}: have not run at one budget both"
    ahead = {budget: min(one, other, key=lambda name: curves[name][budget]) for budget in budgets}
    changes = [
        f"between {before} and {after} phases {ahead[after]} overtakes"
        for before, after in itertools.pairwise(budgets)
        if ahead[before] != ahead[after]
    ]
    if changes:
        return f"- {one}, {other}: {'; '.join(changes)}"
    leads = (
        f"{curves[one][budget].perplexity / curves[other][budget].perplexity - 1:+.1%}"
        for budget in budgets
    )
    return (
        f"- {one}, {other}: {ahead[budgets[0]]} is ahead throughout ({one} at {', '.join(leads)})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=Path, help="`table.json` of a sweep")
    parser.add_argument("--rate", type=float, default=3e-3, help="of a row that names none")
    parser.add_argument("--phases", type=int, default=10, help="of a row that names none")
    options = parser.parse_args()
    try:
        table = msgspec.json.decode(options.table.read_bytes(), type=SweepTable)
    except (OSError, msgspec.DecodeError) as error:
        problem = f"{options.table} is no table of this version ({error})"
        parser.error(f"{problem}. `dipaco ablate` writes it again.")
    curves = best(table.rows, options.rate, options.phases)
    panels = {
        "equal steps": (*PATHS, *SIZES),
        "equal total compute": (*PATHS, EQUAL_COMPUTE),
    }
    for title, names in panels.items():
        print("\n".join(race(title, curves, names)), end="\n\n")
    print("\n".join(regimes(curves)))
    for name in PATHS:
        for other in (*SIZES, EQUAL_COMPUTE):
            print(crossings(curves, name, other))


if __name__ == "__main__":
    main()
