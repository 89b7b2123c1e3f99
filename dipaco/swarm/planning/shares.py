"""Shares of the gradient vector: how much each reducer adds up, for the shortest round.

DeDLOC (arXiv 2106.10207) section 3.2 states a linear program. Among N peers, peer i with bandwidth
b_i and share s_i moves 1 + (N - 2) s_i vectors in each direction (its own vector out and the
others' slices in, then the sums), and the round takes as long as its slowest peer. The optimum has
a closed form, so nothing is solved: `shares`. Loads differ by direction if links are not symmetric,
or if peers only add up or only receive. Then one bisection does it: `shares_of_links`.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

BISECTIONS = 60  # halves an interval to the last bit of a double


def shares(bandwidths: np.ndarray) -> np.ndarray:
    """The optimum of the published linear program.

    xi = max(1 / min b, (N - 2 + n) / sum b), s_i proportional to xi b_i - 1, over the n peers with
    b_i > 0. In words: all reducers finish together, unless the slowest link needs longer for its
    own vector alone.

    Args:
      bandwidths: float [N], N > 2, vectors (or bytes) per second; 0 = only sends (a client).

    Returns:
      float64 [N] that sums to one, 0 for clients.
    """
    b = np.asarray(bandwidths, np.float64)
    can_reduce = b > 0
    num_reducers = int(can_reduce.sum())
    assert num_reducers, "there must be a reducer"
    if num_reducers == 1:
        return can_reduce.astype(np.float64)
    if len(b) == 2:
        return can_reduce / 2  # each moves one vector, for any share
    xi = max(1.0 / b[can_reduce].min(), (len(b) - 2 + num_reducers) / b.sum())
    # Rounding may leave the slowest slightly below zero.
    score = np.maximum(np.where(can_reduce, xi * b - 1.0, 0.0), 0.0)
    return score / score.sum() if score.any() else can_reduce / num_reducers


def round_seconds(bandwidths: np.ndarray, share: np.ndarray) -> float:
    """Duration of a round by the model of `shares`: the time of the slowest reducer."""
    b = np.asarray(bandwidths, np.float64)
    load = 1.0 + (len(b) - 2) * np.asarray(share)
    return float(np.max(load[b > 0] / b[b > 0]))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Link:
    """One peer's connection and its part in a round."""

    up: float  # bytes per second
    down: float
    can_reduce: bool = True
    sends: bool = True  # it has a gradient
    receives: bool = True  # it needs the sum


def shares_of_links(links: Sequence[Link]) -> np.ndarray:
    """Shares for links that differ by direction, by one bisection on the round's duration.

    With S senders and R receivers, peer i moves  up: sends (1 - s) + (R - receives) s,  down:
    receives (1 - s) + (S - sends) s  vectors. For a given duration each peer's largest share is the
    smaller one that both directions admit. At the shortest duration these shares sum to one.

    Returns:
      float64 [N] that sums to one. It equals `shares` for symmetric links if all send and receive.
    """
    up, down = (np.array([getattr(link, name) for link in links], float) for name in ("up", "down"))
    sends, receives, can_reduce = (
        np.array([getattr(link, name) for link in links], bool)
        for name in ("sends", "receives", "can_reduce")
    )
    assert can_reduce.any(), "there must be a reducer"
    if can_reduce.sum() == 1:
        return can_reduce.astype(np.float64)
    up_slope = receives.sum() - receives - sends.astype(float)
    down_slope = sends.sum() - sends - receives.astype(float)

    def admitted(duration: float) -> np.ndarray:
        return np.where(
            can_reduce,
            np.minimum(
                _largest(duration * up - sends, up_slope),
                _largest(duration * down - receives, down_slope),
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


def cut(share: np.ndarray, num_values: int) -> list[slice]:
    """Neighbouring slices of a vector, in order, as large as the shares say; they cover it."""
    ends = np.rint(np.cumsum(share) * num_values).astype(int)
    ends[-1] = num_values
    starts = np.concatenate(([0], ends[:-1]))
    return [slice(int(start), int(end)) for start, end in zip(starts, ends, strict=True)]
