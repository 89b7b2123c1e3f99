"""How far a group is in its step, and when to look again: pure functions of reports.

DeDLOC (arXiv 2106.10207) appendix B, with the numbers of its published implementation. Between two
reports of a peer its progress is extrapolated at its own rate; the group's next step is expected
when the sum reaches the target. Time is any clock in seconds that all arguments share.
"""

import dataclasses
import math
from collections.abc import Iterable


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProgressReport:
    """The last report of one peer."""

    samples: int  # of the current step, accumulated
    samples_per_second: float
    at_seconds: float  # when it was made
    is_current: bool = True  # at the group's step; a late peer's rate counts, its samples do not


@dataclasses.dataclass(frozen=True, kw_only=True)
class RefreshSettings:
    """How often peers look at the group's progress. Defaults: hivemind 1.1."""

    shortest_seconds: float = 0.5
    longest_seconds: float = 10.0
    drift_peers: float = 3.0  # this many may join before the next look,
    drift_fraction: float = 0.2  # or this share of the group, whichever is more
    matchmaking_seconds: float = 5.0  # a round is prepared this long before it is due


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate:
    """Where a group is, by its reports."""

    samples: float  # accumulated by now, extrapolated
    samples_per_second: float  # of all together
    seconds_left: float  # until the target; infinite where no peer computes
    num_peers: int


def estimate(
    reports: Iterable[ProgressReport], target_samples: int, now_seconds: float
) -> Estimate:
    """Sums what peers have, and what they will have added since they reported."""
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
    """How long a peer may go without looking: the time that is left, shortened since peers may join
    meanwhile and bring the step forward.
    """
    here = progress.num_peers
    most = max(here + settings.drift_peers, here * (1.0 + settings.drift_fraction))
    seconds = progress.seconds_left * here / most if here else settings.longest_seconds
    return min(max(seconds, settings.shortest_seconds), settings.longest_seconds)


def should_match(progress: Estimate, settings: RefreshSettings) -> bool:
    """Whether to prepare a round now, so that it can begin when it is due."""
    return progress.seconds_left <= settings.matchmaking_seconds


@dataclasses.dataclass(frozen=True)
class Rate:
    """An exponential moving average of amounts per second, unbiased from the first measurement on
    (as Adam's moments are).
    """

    weight: float = 0.0  # of the measurements, in [0, 1)
    seconds_per_unit: float = 0.0

    def after(self, amount: float, seconds: float, alpha: float = 0.1) -> "Rate":
        """With one more measurement; averages seconds per unit, so that stalls count as long as
        they took.
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
