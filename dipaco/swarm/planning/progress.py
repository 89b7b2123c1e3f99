"""A group's progress in its step, and when to look again: pure functions of reports.

The source is DeDLOC (arXiv 2106.10207) appendix B, with the numbers of its published
implementation. Between two reports, a peer's progress is extrapolated at its own rate. The group's
next step is expected when the sum reaches the target. Time is any clock in seconds that all
arguments share.
"""

import dataclasses
import math
from collections.abc import Iterable


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProgressReport:
    """The last report of one peer."""

    samples: int  # samples accumulated for the current step
    samples_per_second: float
    at_seconds: float  # when it was made
    # True at the group's step. A late peer's rate counts, its samples do not.
    is_current: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class RefreshSettings:
    """Intervals at which peers look at the group's progress. Defaults: hivemind 1.1."""

    shortest_seconds: float = 0.5
    longest_seconds: float = 10.0
    drift_peers: float = 3.0  # this many may join before the next look,
    drift_fraction: float = 0.2  # or this share of the group, whichever is more
    matchmaking_seconds: float = 5.0  # a round is prepared this long before it is due


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate:
    """A group's progress by its reports."""

    samples: float  # accumulated by now, extrapolated
    samples_per_second: float  # all peers together
    seconds_left: float  # seconds until the target; infinite if no peer computes
    num_peers: int


def estimate(
    reports: Iterable[ProgressReport], target_samples: int, now_seconds: float
) -> Estimate:
    """Sums the reported samples, and those that peers have added since."""
    samples = rate = 0.0
    num_peers = 0
    for report in reports:
        num_peers += 1
        rate += report.samples_per_second
        if report.is_current:
            age_seconds = max(0.0, now_seconds - report.at_seconds)
            samples += report.samples + age_seconds * report.samples_per_second
    missing = max(0.0, target_samples - samples)
    if missing == 0:
        left = 0.0
    else:
        left = missing / rate if rate > 0 else math.inf
    return Estimate(
        samples=samples, samples_per_second=rate, seconds_left=left, num_peers=num_peers
    )


def refresh_seconds(progress: Estimate, settings: RefreshSettings) -> float:
    """Longest time that a peer may go without looking. It is the time left, shortened because peers
    may join meanwhile and bring the step forward.
    """
    here = progress.num_peers
    most = max(here + settings.drift_peers, here * (1.0 + settings.drift_fraction))
    seconds = progress.seconds_left * here / most if here else settings.longest_seconds
    return min(max(seconds, settings.shortest_seconds), settings.longest_seconds)


def should_match(progress: Estimate, settings: RefreshSettings) -> bool:
    """True if a round should be prepared now, so that it can begin when it is due."""
    return progress.seconds_left <= settings.matchmaking_seconds


@dataclasses.dataclass(frozen=True)
class Rate:
    """An exponential moving average of amounts per second. It is unbiased from the first
    measurement on, like Adam's moments.
    """

    weight: float = 0.0  # weight of the measurements, in [0, 1)
    seconds_per_unit: float = 0.0

    def after(self, amount: float, seconds: float, alpha: float = 0.1) -> "Rate":
        """Adds one measurement. Seconds per unit are averaged, so that stalls count as long as they
        took.
        """
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
