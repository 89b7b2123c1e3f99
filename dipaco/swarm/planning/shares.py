"""Shares of the gradient vector: how much each reducer adds up, for the shortest round.

DeDLOC (arXiv 2106.10207) section 3.2 states a linear program. Among N peers, peer i with bandwidth
b_i and share s_i moves 1 + (N - 2) s_i vectors in each direction (its own vector out and the
others' slices in, then the sums), and the round takes as long as its slowest peer. Loads differ by
direction if links are not symmetric, or if peers only add up. One bisection does it.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

BISECTIONS = 60  # halves an interval to the last bit of a double


@dataclasses.dataclass(frozen=True, kw_only=True)
class Link:
    """One peer's connection and its part in a round."""

    up: float  # bytes per second
    down: float
    can_reduce: bool = True
    sends: bool = True  # it has a gradient


def shares_of_links(links: Sequence[Link]) -> np.ndarray:
    """Shares for links that differ by direction, by one bisection on the round's duration.

    With S senders among N peers, peer i moves  up: sends (1 - s) + (N - 1) s,  down: 1 - s +
    (S - sends) s  vectors. For a given duration each peer's largest share is the
    smaller one that both directions admit. At the shortest duration these shares sum to one.

    Returns:
      float64 [N] that sums to one. It is the published optimum for symmetric links if all send and
      receive.
    """
    up, down = (np.array([getattr(link, name) for link in links], float) for name in ("up", "down"))
    sends = np.array([link.sends for link in links], float)
    can_reduce = np.array([link.can_reduce for link in links])
    assert can_reduce.any(), "there must be a reducer"
    if can_reduce.sum() == 1:
        return can_reduce.astype(np.float64)
    up_slope, down_slope = len(links) - 1.0 - sends, sends.sum() - sends - 1.0

    def admitted(duration: float) -> np.ndarray:
        return np.where(
            can_reduce,
            np.minimum(
                _largest(duration * up - sends, up_slope),
                _largest(duration * down - 1.0, down_slope),
            ),
            0.0,
        )

    short, long = 0.0, 1.0 / min(up.min(), down.min())
    while admitted(long).sum() < 1.0:
        long *= 2.0
    for _ in range(BISECTIONS):
        middle = (short + long) / 2
        short, long = (short, middle) if admitted(middle).sum() >= 1.0 else (middle, long)
    share = admitted(long)
    return share / share.sum()


def _largest(budget: np.ndarray, slope: np.ndarray) -> np.ndarray:
    """The largest share in [0, 1] with slope * share <= budget, or 0 if there is none."""
    positive = slope > 0
    ratio = np.where(positive, budget / np.where(positive, slope, 1.0), 1.0)
    return np.where(budget < -1e-12, 0.0, np.clip(ratio, 0.0, 1.0))


def capped(share: np.ndarray, holders: Sequence[str], most: float) -> np.ndarray:
    """Shares of which no holder but the first peer, the leader, has more than `most`. The rest goes
    to the others in proportion, or to the leader.
    """
    found = np.array(share, np.float64)
    for holder in dict.fromkeys(holders[1:]):
        own = np.array([one == holder for one in holders])
        own[0] = False
        if (excess := found[own].sum() - most) > 0:
            found[own] *= most / found[own].sum()
            others = np.where(own, 0.0, found)
            if not others.any():
                others[0] = 1.0
            found += excess * others / others.sum()
    return found


def cut(share: np.ndarray, num_values: int) -> list[slice]:
    """Neighbouring slices of a vector, in order, as large as the shares say; they cover it."""
    ends = np.rint(np.cumsum(share) * num_values).astype(int)
    ends[-1] = num_values
    starts = np.concatenate(([0], ends[:-1]))
    return [slice(int(start), int(end)) for start, end in zip(starts, ends, strict=True)]
