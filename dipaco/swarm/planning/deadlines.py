"""How long to wait for a peer: learned from durations that were measured, never a constant.

A deadline is their median plus some spreads. The spread is the median absolute deviation, so that
one stall does not lengthen the next deadline.
"""

import collections
import statistics
from collections.abc import Iterable

SPREADS = 6.0
MIN_SPREAD = 0.25  # of the median: even the most regular peer is interrupted now and then
REMEMBERED = 64  # durations
GAUSSIAN = 1.4826  # median absolute deviation -> standard deviation


def deadline_seconds(durations: Iterable[float], guess_seconds: float) -> float:
    """After how many seconds to give up, from durations of the same thing.

    Args:
      durations: seconds that it has taken; may be empty.
      guess_seconds: expected from sizes and declared speeds. It weighs less with each measurement.
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
    """The last durations."""

    def __init__(self) -> None:
        self._seen: collections.deque[float] = collections.deque(maxlen=REMEMBERED)

    def add(self, seconds: float) -> None:
        self._seen.append(seconds)

    def deadline_seconds(self, guess_seconds: float) -> float:
        return deadline_seconds(self._seen, guess_seconds)
