"""How much of the gap between a router and the best path another way of routing closes.

Paired over documents: all ways are measured on the same documents under the same modules, and whole
documents are drawn again (a bootstrap), so the interval says what other documents would have given.

Axes: N documents, R draws.
"""

from typing import NamedTuple

import numpy as np


class Share(NamedTuple):
    """A share of the gap, with the bounds of its 95 % interval; 1 = the best path."""

    value: float
    low: float
    high: float


def drawings(documents: int, draws: int, seed: int = 0) -> np.ndarray:
    """float64 [R, N]: how often each of R drawings with replacement has each of N documents."""
    share_N = np.full(documents, 1 / documents)
    return np.random.default_rng(seed).multinomial(documents, share_N, draws).astype(np.float64)


def share_of_gap(
    before_N: np.ndarray,
    after_N: np.ndarray,
    best_N: np.ndarray,
    count_N: np.ndarray,
    *,
    draws: int = 2000,
    seed: int = 0,
) -> Share:
    """(perplexity before - after) / (before - best).

    Args:
      before_N, after_N, best_N: summed log-likelihood of each document in nats: under the path of
        the router, of the other way, and under its best path.
      count_N: tokens summed.
      draws: of as many documents, with replacement.
      seed: of the draws.
    """

    def share(weight_RN: np.ndarray) -> np.ndarray:
        tokens_R = weight_RN @ count_N
        before_R, after_R, best_R = (
            np.exp(-(weight_RN @ sum_N) / tokens_R) for sum_N in (before_N, after_N, best_N)
        )
        with np.errstate(divide="ignore", invalid="ignore"):  # nothing to gain: not a number
            return (before_R - after_R) / (before_R - best_R)

    number = len(count_N)
    low, high = np.quantile(share(drawings(number, draws, seed)), (0.025, 0.975))
    return Share(float(share(np.ones((1, number)))[0]), float(low), float(high))
