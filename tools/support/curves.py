"""Rows of a sweep that are called `NAME rate RATE phases N`: the same contender at several budgets.

As in `configs/ablations/reproduction.py`. At every budget a contender comes with the rate that was
best for it, in the mean over the seeds that all rows have.
"""

import re
import statistics
import sys
from collections.abc import Sequence
from typing import NamedTuple

from dipaco.sweeps.table import SweepRow

ROW = re.compile(r"(?P<name>.+?)( rate (?P<rate>[\d.e-]+))?( phases (?P<phases>\d+))?")


class Tried(NamedTuple):
    """A contender at one budget and one peak rate."""

    perplexity: float
    rate: float
    row: SweepRow


Tries = dict[str, dict[int, list[Tried]]]  # contender, phases of a path; the best rate first


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
        tried = Tried(_mean(row, seeds), float(match["rate"] or rate), row)
        of_name = found.setdefault(match["name"] + suffix, {})
        of_name.setdefault(int(match["phases"] or phases), []).append(tried)
    for of_name in found.values():
        for tried in of_name.values():
            tried.sort(key=lambda each: (each.perplexity, each.rate))
    return found


def _mean(row: SweepRow, seeds: set[int]) -> float:
    of_seed = dict(zip(row.seeds, row.perplexities, strict=True))
    return statistics.mean(of_seed[seed] for seed in seeds)
