"""Paired differences: whether one row is better than another, beyond the noise of seeds.

Runs of one seed share corpus, base model and order of rows, so a seed affects both rows alike. The
difference is taken seed by seed, and its mean comes with Student's 95 % interval. An ordering is
*resolved* if the interval excludes zero. Few seeds give a wide interval: three give 2.5 standard
deviations of the difference. Two would give 9, of one deviation: they have none.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

CONFIDENCE = 0.95
LEAST_SEEDS = 3  # for an interval


class Interval(NamedTuple):
    """A mean over seeds with its 95 % interval."""

    mean: float
    half_width: float | None  # None with fewer than LEAST_SEEDS, or a mean that is not finite
    seeds: tuple[int, ...]

    @property
    def is_resolved(self) -> bool:
        """True if the interval excludes zero."""
        return self.half_width is not None and abs(self.mean) > self.half_width


def paired_difference(before: Mapping[int, float], after: Mapping[int, float]) -> Interval | None:
    """`after - before`, over the seeds that both have. None if they share no seed."""
    seeds = tuple(sorted(before.keys() & after.keys()))
    return mean_interval({seed: after[seed] - before[seed] for seed in seeds}) if seeds else None


def in_words(seeds: Sequence[int]) -> str:
    """`seed 0`, `seeds 0, 1`."""
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"


def mean_interval(values: Mapping[int, float]) -> Interval:
    """The mean of values by seed, with its interval where there are LEAST_SEEDS, all finite:
    t(0.975, n - 1) s / sqrt(n).
    """
    from scipy.special import stdtrit

    number, seeds = len(values), tuple(sorted(values))
    if not all(map(math.isfinite, values.values())):  # two infinities have no mean
        return Interval(math.nan, None, seeds)
    mean = statistics.fmean(values.values())
    if number < LEAST_SEEDS:
        return Interval(mean, None, seeds)
    quantile = float(stdtrit(number - 1, (1 + CONFIDENCE) / 2))
    deviation = statistics.stdev(values.values())
    return Interval(mean, quantile * deviation / math.sqrt(number), seeds)
