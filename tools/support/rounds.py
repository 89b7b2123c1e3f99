"""The loop that benchmarks share. Everything compared is measured in turn, round after round."""

import math
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple, TypeVar

Way = TypeVar("Way", bound=Hashable)


class Ratio(NamedTuple):
    """The median of ratios, and the two between which the true median lies with 95 %."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} [{self.low:.2f}, {self.high:.2f}]"


def in_turn(ways: Mapping[Way, Callable[[int], float]], rounds: int) -> dict[Way, list[float]]:
    """Measures every way once in each round, so that all of them meet the same disturbances.

    Args:
      ways: each measures itself in a round of that number.
    """
    measured: dict[Way, list[float]] = {way: [] for way in ways}
    for number in range(rounds):
        for way, measure in ways.items():
            measured[way].append(measure(number))
    return measured


def seconds_of(work: Callable[[], object]) -> float:
    """The time that some work takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def ratio_of(over: Sequence[float], under: Sequence[float]) -> Ratio:
    """The ratio of two ways, round by round."""
    return median_and_interval([a / b for a, b in zip(over, under, strict=True)])


def median_and_interval(ratios: Sequence[float]) -> Ratio:
    """The median of n ratios with its interval, by order statistics.

    The number of ratios below the true median is binomial(n, 1/2), whatever their distribution.
    Fewer than six ratios cannot be that sure. Their interval is the least and the greatest.
    """
    ordered, n = sorted(float(ratio) for ratio in ratios), len(ratios)
    middle = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
    below, chance = 0, 0.0
    while below < n // 2:
        chance += math.comb(n, below) / 2**n
        if chance > 0.025:
            break
        below += 1
    first = max(below - 1, 0)
    return Ratio(middle, ordered[first], ordered[n - 1 - first])
