"""Paired differences: whether one row is better than another, beyond the noise of seeds.

Runs of one seed share corpus, base model and order of rows, so a seed affects both rows alike. The
difference is taken seed by seed, and its mean comes with Student's 95 % interval; an ordering is
*resolved* if the interval excludes zero. Few seeds give a wide interval: three give 2.5 standard
deviations of the difference. Two would give 9, of one deviation: they have none.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

CONFIDENCE = 0.95
LEAST_SEEDS = 3  # for an interval
TURNS = 200  # of a fit; rows with few seeds in common need many


class Interval(NamedTuple):
    """A mean over seeds with its 95 % interval."""

    mean: float
    half_width: float | None  # of the 95 % interval; None with fewer than LEAST_SEEDS
    seeds: tuple[int, ...]

    @property
    def is_resolved(self) -> bool:
        """Whether the interval excludes zero."""
        return self.half_width is not None and abs(self.mean) > self.half_width


def paired_difference(before: Mapping[int, float], after: Mapping[int, float]) -> Interval | None:
    """`after - before`, over the seeds that both have; None if they share none.

    Args:
      before, after: seed -> value.
    """
    seeds = tuple(sorted(before.keys() & after.keys()))
    return mean_interval({seed: after[seed] - before[seed] for seed in seeds}) if seeds else None


def are_equal(before: Mapping[int, float], after: Mapping[int, float]) -> bool:
    """Whether the values are the same under every seed that both have."""
    seeds = before.keys() & after.keys()
    return bool(seeds) and all(before[seed] == after[seed] for seed in seeds)


def means_over_all_seeds(values: Mapping[str, Mapping[int, float]]) -> dict[str, float]:
    """The mean of each row as if it had every seed that any row has, to rank rows by.

    A value is taken as the row's plus what its seed does to every row; both are fitted by least
    squares, in turns. Where all rows have the same seeds these are their means.

    Args:
      values: row -> seed -> value; each row has one or more.
    """
    means = {row: statistics.fmean(by_seed.values()) for row, by_seed in values.items()}
    if len({frozenset(by_seed) for by_seed in values.values()}) == 1:
        return means
    seeds = {seed for by_seed in values.values() for seed in by_seed}
    effects = dict.fromkeys(seeds, 0.0)
    for _ in range(TURNS):
        for seed in seeds:
            effects[seed] = statistics.fmean(
                by_seed[seed] - means[row] for row, by_seed in values.items() if seed in by_seed
            )
        for row, by_seed in values.items():
            means[row] = statistics.fmean(by_seed[seed] - effects[seed] for seed in by_seed)
    average = statistics.fmean(effects.values()) if effects else 0.0
    return {row: mean + average for row, mean in means.items()}


def in_words(seeds: Sequence[int]) -> str:
    """`seed 0`, `seeds 0, 1`."""
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"


def mean_interval(values: Mapping[int, float]) -> Interval:
    """The mean of values by seed, with its interval where there are LEAST_SEEDS:
    t(0.975, n - 1) s / sqrt(n).
    """
    from scipy.special import stdtrit

    number, seeds = len(values), tuple(sorted(values))
    mean = statistics.fmean(values.values())
    if number < LEAST_SEEDS:
        return Interval(mean, None, seeds)
    quantile = float(stdtrit(number - 1, (1 + CONFIDENCE) / 2))
    deviation = statistics.stdev(values.values())
    return Interval(mean, quantile * deviation / math.sqrt(number), seeds)
