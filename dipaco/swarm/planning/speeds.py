"""How fast the volunteers of each path are expected to be, those among them that have just come."""

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

NEW_SECONDS = 300.0  # in which a newcomer is expected to have computed its first block


class Hand(NamedTuple):
    """A volunteer at a path, as its leader knows it."""

    samples_per_second: float  # as timed there; 0 = not yet
    declared_samples_per_second: float  # as it says that it computed at another path; 0 = unknown
    seconds: float  # since it joined


def expected_speeds(hands: Mapping[int, Sequence[Hand]]) -> dict[int, float]:
    """Path -> samples per second of all that are there.

    A newcomer counts as it declares, though no faster than the fastest that was timed in the whole
    run; one that declares nothing, as a usual one. One that has computed nothing for `NEW_SECONDS`
    counts for nothing: the path may need others.
    """
    timed = [one.samples_per_second for each in hands.values() for one in each]
    timed = [speed for speed in timed if speed]
    usual, fastest = (statistics.fmean(timed), max(timed)) if timed else (1.0, 1.0)

    def speed_of(hand: Hand) -> float:
        if hand.samples_per_second or hand.seconds > NEW_SECONDS:
            return hand.samples_per_second
        return min(hand.declared_samples_per_second or usual, fastest)

    return {path: sum(map(speed_of, each)) for path, each in hands.items()}
