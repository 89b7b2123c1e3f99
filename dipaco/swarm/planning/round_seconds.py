"""How long a round may take, from the links of its members: before that was measured, and at most.

Every link in turn moves at most two vectors for itself, and those of what it adds up. For few
senders that are slow, or say so, the others do not wait for longer than their own links may need,
or than the step has taken so far: its rows are sooner computed again.
"""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from dipaco.swarm.planning.deadlines import SPREADS
from dipaco.swarm.planning.shares import Link


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
    usual = min(speeds[0], statistics.median_high(of_senders or speeds))
    num_bytes = 4.0 * num_values * (2 + len(links))
    by_usual = least_seconds + num_bytes / usual
    return RoundSeconds(
        expected=least_seconds + num_bytes / min(speeds),
        most=max(by_usual * (1.0 + SPREADS), step_seconds),
    )
