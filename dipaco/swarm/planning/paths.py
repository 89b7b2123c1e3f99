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


class PathNeed(NamedTuple):
    """A path that has a backbone, the work left in its phase, and the speed of its volunteers."""

    path: int
    addresses: tuple[str, ...]  # addresses of its backbones
    step: int
    samples_left: float
    samples_per_second: float  # measured
    volunteers: int
    expected_samples_per_second: float = 0.0  # the same with newcomers included
    loss: float | None = None  # loss of its last step


def path_to_join(needs: Iterable[PathNeed], name: str) -> int | None:
    """The path that needs a newcomer most: the one that would end last. Among paths without
    volunteers, the most samples left come first; with nothing left, the slowest. `name`: so that
    others choose differently among equal paths.
    """

    def order(need: PathNeed) -> tuple[float, float, float, int]:
        own = zlib.crc32(f"{name} {need.path}".encode())
        return -_seconds(need), -need.samples_left, need.expected_samples_per_second, own

    first = min(needs, key=order, default=None)
    return None if first is None else first.path


def path_to_move_to(
    needs: Iterable[PathNeed], here: int, samples_per_second: float, name: str
) -> int | None:
    """The path that needs a volunteer clearly more than its present one. None = it stays.
    `samples_per_second`: its speed, which is part of the speed of `here`.
    """
    by_path = {need.path: need for need in needs}
    own = by_path.pop(here, None)
    target = path_to_join(by_path.values(), name)
    if own is None or target is None:
        return target
    other = by_path[target]
    before = max(_seconds(own), _seconds(other))
    left, helped = _seconds(own, -samples_per_second), _seconds(other, samples_per_second)
    after = max(left, helped + MOVE_SECONDS)
    return target if after < GAIN * before else None


def look_again_seconds(needs: Iterable[PathNeed], here: int) -> float:
    """Seconds until a volunteer looks again: a short phase is over soon."""
    left = next((_seconds(need) for need in needs if need.path == here), 0.0)
    return min(LOOK_SECONDS, max(1.0, left / LOOKS)) if left else LOOK_SECONDS / LOOKS


def _seconds(need: PathNeed, more_per_second: float = 0.0) -> float:
    """Seconds until the path's phase ends."""
    if need.samples_left <= 0:
        return 0.0
    per_second = need.expected_samples_per_second + more_per_second
    return need.samples_left / per_second if per_second > 0 else math.inf


NEW_SECONDS = 300.0  # A newcomer should have computed its first block in this time.


def expected_speeds(
    volunteers: Mapping[int, Sequence[tuple[float, float]]],
) -> dict[int, float]:
    """Path -> expected samples per second of all its volunteers, by the speed (0 before a block)
    and the seconds of each. A newcomer counts with the mean speed. One without a block for
    `NEW_SECONDS` counts for nothing: the path may need others.
    """
    timed = [speed for each in volunteers.values() for speed, _ in each if speed]
    usual = statistics.fmean(timed) if timed else 1.0
    return {
        path: sum(speed or usual * (seconds <= NEW_SECONDS) for speed, seconds in each)
        for path, each in volunteers.items()
    }
