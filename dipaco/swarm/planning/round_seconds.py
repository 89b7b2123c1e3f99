"""Estimates how long a round may take from its members' links, before any was measured.

Every link in turn moves at most two vectors for itself, and the vectors that it adds up. If one
sender in many is slow, or says so, the others wait no longer than the next slowest may need, or
than the step has taken so far: its rows are sooner computed again. With two senders it is unknown
which is the usual one, so both are waited for, an hour at most.
"""

from collections.abc import Sequence
from typing import NamedTuple

from dipaco.swarm.planning.deadlines import SPREADS
from dipaco.swarm.planning.shares import Link

# One sender in so many may be slow without being waited for, if there are three or more.
MAX_UNUSUAL = 8
MAX_ROUND_SECONDS = 3600.0  # longest wait for senders that are slower than most


class RoundSeconds(NamedTuple):
    """The duration of one round."""

    expected: float  # expected from the slowest link
    most: float  # longest wait, whatever was measured


def round_seconds_of(
    links: Sequence[Link], num_values: int, least_seconds: float, step_seconds: float
) -> RoundSeconds:
    """Estimates the duration of a round.

    Args:
      links: the links of all members, the leader's first, whose word is taken.
      num_values: float32 values of the gradient.
      least_seconds: shortest duration of any round.
      step_seconds: the time that the step has taken so far.
    """
    speeds = [min(link.up, link.down) for link in links]
    of_senders = [speed for link, speed in zip(links[1:], speeds[1:], strict=True) if link.sends]
    ordered = sorted(of_senders or speeds)
    num_unusual = max(1, len(ordered) // MAX_UNUSUAL) if len(ordered) > 2 else 0
    num_bytes = 4.0 * num_values * (2 + len(links))

    def most_seconds(of_sender: float) -> float:
        return (least_seconds + num_bytes / min(speeds[0], of_sender)) * (1.0 + SPREADS)

    by_slow, by_usual = most_seconds(ordered[num_unusual]), most_seconds(ordered[len(ordered) // 2])
    return RoundSeconds(
        expected=least_seconds + num_bytes / min(speeds),
        most=max(min(by_slow, MAX_ROUND_SECONDS), by_usual, step_seconds),
    )
