"""Which path of a run a volunteer serves, where several can be joined.

Modules step when all of their paths have ended a phase, so what counts is the path that ends its
phase last. A volunteer goes where it brings that moment nearest, and moves only where the slower of
the two paths that it changes would end clearly sooner. All of them follow the same figures, which
are a second or two old, and which have those that have just come. So that they do not all do the
same at once, each waits a time of its own (`roles/session.py`), looks again before it moves, and
has an order of its own among paths that need it equally.
"""

import math
import zlib
from collections.abc import Iterable
from typing import NamedTuple

GAIN = 0.9  # of the seconds that the slower of two paths needs: a move must bring it below this
MOVE_SECONDS = 20.0  # about what a move costs: leaving, fetching the other path's state
LOOK_SECONDS = 20.0  # between two looks at the whole run, at most
LOOKS = 10  # in what is left of a phase, at least


class Need(NamedTuple):
    """What a path's phase still takes, and who is at it."""

    path: int
    samples_left: float
    samples_per_second: float  # of all that are there


def path_to_join(needs: Iterable[Need], name: str) -> int | None:
    """The path that needs a newcomer most: the one that would end last without it;
    of those that nobody serves, the one with most left; of those with nothing left, the one with
    least speed. None where there is no path.

    Args:
      needs: of all paths that can be joined.
      name: of the newcomer: others choose differently among equal paths.
    """

    def order(need: Need) -> tuple[float, float, float, int]:
        own = zlib.crc32(f"{name} {need.path}".encode())
        return -_seconds(need), -need.samples_left, need.samples_per_second, own

    first = min(needs, key=order, default=None)
    return None if first is None else first.path


def path_to_move_to(
    needs: Iterable[Need], here: int, samples_per_second: float, name: str
) -> int | None:
    """Where a volunteer is needed clearly more than at the path that it serves; None = it stays.

    Args:
      needs: of all paths that can be joined, this one among them.
      here: the path that it serves.
      samples_per_second: its own, which is in those of `here`.
      name: its own.
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
    """After how long a volunteer looks again: a short phase is over soon."""
    left = next((_seconds(need) for need in needs if need.path == here), 0.0)
    return min(LOOK_SECONDS, max(1.0, left / LOOKS)) if left else LOOK_SECONDS / LOOKS


def _seconds(need: Need) -> float:
    """Until its phase ends."""
    if need.samples_left <= 0:
        return 0.0
    return need.samples_left / need.samples_per_second if need.samples_per_second else math.inf
