"""Expected speeds of the volunteers of each path, newcomers included."""

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

NEW_SECONDS = 300.0  # A newcomer should have computed its first block in this time.


class PathVolunteer(NamedTuple):
    """A volunteer of a path, as its leader knows it."""

    samples_per_second: float  # measured there; 0 = not yet
    declared_samples_per_second: float  # its speed at another path by its own word; 0 = unknown
    seconds: float  # time since it joined


def expected_speeds(volunteers: Mapping[int, Sequence[PathVolunteer]]) -> dict[int, float]:
    """Path -> expected samples per second of all its volunteers.

    A newcomer counts with its declared speed, though no faster than the fastest that was timed in
    the whole run. A newcomer that declares nothing counts with the mean speed. A volunteer that has
    computed nothing for `NEW_SECONDS` counts for nothing: the path may need others.
    """
    timed = [one.samples_per_second for each in volunteers.values() for one in each]
    timed = [speed for speed in timed if speed]
    usual, fastest = (statistics.fmean(timed), max(timed)) if timed else (1.0, 1.0)

    def speed_of(one: PathVolunteer) -> float:
        if one.samples_per_second or one.seconds > NEW_SECONDS:
            return one.samples_per_second
        return min(one.declared_samples_per_second or usual, fastest)

    return {path: sum(map(speed_of, each)) for path, each in volunteers.items()}
