"""Chooses the path that a volunteer serves, where several can be joined.

Modules step when all of their paths have ended a phase, so the path that ends last decides. A
volunteer goes where it brings that moment nearest. It moves only if the slower of the two affected
paths would end clearly sooner. All volunteers follow the same figures, which are a second or two
old and include newcomers. So that they do not all do the same at once, each waits for a different
time (`roles/session.py`), looks again before it moves, and breaks ties between paths in a different
order.
"""

import math
import statistics
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

GAIN = 0.9  # A move must cut the seconds of the slower of two paths to this share.
MOVE_SECONDS = 20.0  # approximate cost of a move: leaving, and fetching the other path's state
LOOK_SECONDS = 20.0  # longest time between two looks at the whole run
LOOKS = 10  # fewest looks in the rest of a phase


class Need(NamedTuple):
    """The work left in a path's phase, and the speed of its volunteers."""

    path: int
    samples_left: float
    samples_per_second: float  # all volunteers there together


def path_to_join(needs: Iterable[Need], name: str) -> int | None:
    """The path that needs a newcomer most, or None if there is no path.

    It is the path that would end last without the newcomer. Among paths without volunteers, the one
    with the most samples left comes first. Among paths with nothing left, the slowest comes first.
    `name`: the newcomer's name, so that others choose differently among equal paths.
    """

    def order(need: Need) -> tuple[float, float, float, int]:
        own = zlib.crc32(f"{name} {need.path}".encode())
        return -_seconds(need), -need.samples_left, need.samples_per_second, own

    first = min(needs, key=order, default=None)
    return None if first is None else first.path


def path_to_move_to(
    needs: Iterable[Need], here: int, samples_per_second: float, name: str
) -> int | None:
    """The path that needs a volunteer clearly more than its present one. None = it stays.

    Args:
      needs: all paths that can be joined, the present one included.
      samples_per_second: the volunteer's speed, which is part of the speed of `here`.
      name: the volunteer's name.
    """
    by_path = {need.path: need for need in needs}
    own = by_path.pop(here, None)
    target = path_to_join(by_path.values(), name)
    if own is None or target is None:
        return target
    other = by_path[target]
    left = own._replace(samples_per_second=max(0.0, own.samples_per_second - samples_per_second))
    helped = other._replace(samples_per_second=other.samples_per_second + samples_per_second)
    before = max(_seconds(own), _seconds(other))
    after = max(_seconds(left), _seconds(helped) + MOVE_SECONDS)
    return target if after < GAIN * before else None


def look_again_seconds(needs: Iterable[Need], here: int) -> float:
    """Seconds until a volunteer looks again: a short phase is over soon."""
    left = next((_seconds(need) for need in needs if need.path == here), 0.0)
    return min(LOOK_SECONDS, max(1.0, left / LOOKS)) if left else LOOK_SECONDS / LOOKS


def _seconds(need: Need) -> float:
    """Seconds until the path's phase ends."""
    if need.samples_left <= 0:
        return 0.0
    return need.samples_left / need.samples_per_second if need.samples_per_second else math.inf


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
