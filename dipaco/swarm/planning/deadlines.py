"""Deadlines for a peer, learned from measured durations and never a constant.

A deadline is the median of the durations plus some spreads. The spread is the median absolute
deviation, so that one stall does not lengthen the next deadline.
"""

import collections
import statistics
from collections.abc import Iterable

SPREADS = 6.0
# Smallest spread, in medians: even the most regular peer is interrupted now and then.
MIN_SPREAD = 0.25
REMEMBERED = 64  # durations kept
GAUSSIAN = 1.4826  # median absolute deviation -> standard deviation


def deadline_seconds(durations: Iterable[float], guess_seconds: float) -> float:
    """Seconds after which to give up, from earlier durations of the same operation.

    Args:
      durations: measured seconds; may be empty.
      guess_seconds: a guess from sizes and declared speeds. It weighs less with each measurement.
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
