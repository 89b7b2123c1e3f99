"""Rates of work, deadlines learned from measured durations, and the expected time of a round.

A deadline is the median of the durations plus some spreads. The spread is the median absolute
deviation, so that one stall does not lengthen the next deadline.
"""

import collections
import dataclasses
import statistics
from collections.abc import Iterable, Sequence

from dipaco.swarm.planning.shares import Link


@dataclasses.dataclass(frozen=True)
class Rate:
    """An exponential moving average per second, unbiased from the first measurement on."""

    weight: float = 0.0  # weight of the measurements, in [0, 1)
    seconds_per_unit: float = 0.0

    def after(self, amount: float, seconds: float, alpha: float = 0.1) -> "Rate":
        """Adds one measurement. Seconds per unit are averaged: stalls count in full."""
        if amount <= 0:
            return self
        measured = seconds / amount
        return Rate(
            self.weight + alpha * (1.0 - self.weight),
            self.seconds_per_unit + alpha * (measured - self.seconds_per_unit),
        )

    @property
    def per_second(self) -> float:
        """Zero before anything was measured."""
        return self.weight / self.seconds_per_unit if self.seconds_per_unit > 0 else 0.0


SPREADS = 6.0
# Smallest spread, in medians: even the most regular peer is interrupted now and then.
MIN_SPREAD = 0.25
REMEMBERED = 64  # durations kept
GAUSSIAN = 1.4826  # median absolute deviation -> standard deviation


def deadline_seconds(durations: Iterable[float], guess_seconds: float) -> float:
    """Seconds after which to give up, from earlier durations of the same operation.
    `guess_seconds`: a guess from sizes and declared speeds. It weighs less with each measurement.
    """
    seen = list(durations)
    if not seen:
        return guess_seconds * (1.0 + SPREADS)
    median = statistics.median(seen)
    spread = GAUSSIAN * statistics.median(abs(value - median) for value in seen)
    learned = median + SPREADS * max(spread, MIN_SPREAD * median)
    trust = len(seen) / (len(seen) + 2.0)  # two measurements weigh as much as the guess
    return trust * learned + (1.0 - trust) * max(learned, guess_seconds * (1.0 + SPREADS))


class Durations:
    """The last `REMEMBERED` durations."""

    def __init__(self) -> None:
        self._seen: collections.deque[float] = collections.deque(maxlen=REMEMBERED)

    def add(self, seconds: float) -> None:
        self._seen.append(seconds)

    def deadline_seconds(self, guess_seconds: float) -> float:
        return deadline_seconds(self._seen, guess_seconds)


# One sender in so many may be slow without being waited for, if there are three or more.
MAX_UNUSUAL = 8
MAX_ROUND_SECONDS = 3600.0  # longest wait for senders that are slower than most


def round_seconds_of(
    links: Sequence[Link], num_values: int, least_seconds: float, step_seconds: float
) -> tuple[float, float]:
    """The expected duration of a round, and the longest wait. `links`: those of all members, the
    leader's first, whose word is taken. `step_seconds`: the time that the step has taken so far.
    """
    speeds = [min(link.up, link.down) for link in links]
    of_senders = [speed for link, speed in zip(links[1:], speeds[1:], strict=True) if link.sends]
    ordered = sorted(of_senders or speeds)
    num_unusual = max(1, len(ordered) // MAX_UNUSUAL) if len(ordered) > 2 else 0
    num_bytes = 4.0 * num_values * (2 + len(links))

    def most_seconds(of_sender: float) -> float:
        return (least_seconds + num_bytes / min(speeds[0], of_sender)) * (1.0 + SPREADS)

    by_slow, by_usual = most_seconds(ordered[num_unusual]), most_seconds(ordered[len(ordered) // 2])
    most = max(min(by_slow, MAX_ROUND_SECONDS), by_usual, step_seconds)
    return least_seconds + num_bytes / min(speeds), most
