"""How long a round may take, from the links of its members: before that was measured, and at most.

Every link in turn moves at most two vectors for itself, and those of what it adds up. For one
sender in many that is slow, or says so, the others do not wait for longer than the next slowest may
need, or than the step has taken so far: its rows are sooner computed again. Of two senders it is
not known which is the usual one: both are waited for, an hour at most.
"""

from collections.abc import Sequence
from typing import NamedTuple

from dipaco.swarm.planning.deadlines import SPREADS
from dipaco.swarm.planning.shares import Link

MAX_UNUSUAL = 8  # one sender in so many may be slow without being waited for; one of three and more
MAX_ROUND_SECONDS = 3600.0  # for senders that are slower than most


class RoundSeconds(NamedTuple):
    """Of one round."""

    expected: float  # by the slowest link
    most: float  # that may be waited, whatever was measured


def round_seconds_of(
    links: Sequence[Link], num_values: int, least_seconds: float, step_seconds: float
) -> RoundSeconds:
    """What is expected of a round.

    Args:
      links: of all members, the leader's first, whose word is taken.
      num_values: float32, of the gradient.
      least_seconds: of any round.
      step_seconds: that the step has taken so far.
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
