"""How long an outer step waits for late contributions, from how long earlier ones took.

A grace in seconds is wrong both ways: where phases are short or alike it waits too long for a path
that will not come, elsewhere it steps without paths that are only a little behind. An *adaptive*
grace ends at

    median + max(deviations x MAD, margin x median)

after the module began to wait, where the median and the median absolute deviation (MAD) are those
of the contributions to this module in the phases before. Both ignore up to half of the values, so
a path that took five times as long moves neither. If this phase is slow for all, the median of the
contributions that are in takes the place of the earlier one.

`WINDOW_PHASES`, and the defaults of deviations and margin, are from simulations: `bench_grace.py`.
"""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

WINDOW_PHASES = 8  # whose contributions count
LEAST_EARLIER = 3  # contributions, for a grace that follows from them


class AdaptiveGrace(NamedTuple):
    """Settings of a grace that follows from the arrivals."""

    deviations: float
    margin: float


class GracePeriod(NamedTuple):
    """For how long a step waits for the rest once enough contributions are in, and why."""

    seconds: float
    median_seconds: float | None = None  # None: as long as is set
    deviation_seconds: float | None = None


def grace_after(
    waited_seconds: float,
    earlier: Sequence[float],
    present: Sequence[float],
    settings: AdaptiveGrace,
    most_seconds: float,
) -> GracePeriod:
    """The grace of a step that has enough contributions now.

    Args:
      waited_seconds: since the module began to wait for contributions of this phase.
      earlier: seconds that those of earlier phases took, late ones included.
      present: seconds that those of this phase took which are in.
      settings: how far beyond the median is waited.
      most_seconds: for which is waited from now on at most; all of them while few contributions
        are known.
    """
    if len(earlier) < LEAST_EARLIER:
        return GracePeriod(most_seconds)
    median = statistics.median(earlier)
    deviation = statistics.median(abs(seconds - median) for seconds in earlier)
    usual = max(median, statistics.median(present)) if present else median
    end = usual + max(settings.deviations * deviation, settings.margin * median)
    return GracePeriod(min(most_seconds, max(0.0, end - waited_seconds)), median, deviation)
