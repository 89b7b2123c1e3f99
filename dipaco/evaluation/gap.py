"""The share of the gap between a router and the best path that another way of routing closes.

Paired: all ways are measured on the same documents under the same modules. Whole texts, of which
the documents are pieces, are drawn again (a bootstrap), so the interval says what other texts would
have given. Of fewer than `LEAST_TEXTS` there is none.

Axes: N documents, T texts, R draws.
"""

import math
from typing import NamedTuple

import numpy as np

LEAST_TEXTS = 10  # for an interval: of fewer, too few drawings differ


class Share(NamedTuple):
    """A share of the gap, with the bounds of its 95 % interval. 1 is the best path. Not a number:
    there is no gap, or there are too few texts for an interval.
    """

    value: float
    low: float
    high: float


def drawings(texts: int, draws: int, seed: int = 0) -> np.ndarray:
    """float64 [R, T]: how often each of R drawings with replacement has each of T texts."""
    share_T = np.full(texts, 1 / texts)
    return np.random.default_rng(seed).multinomial(texts, share_T, draws).astype(np.float64)


def by_text(value_N: np.ndarray, text_N: np.ndarray) -> np.ndarray:
    """float64 [T]: sums over the documents of each text, texts in ascending order.

    Args:
      text_N: a number for the text that each is a piece of.
    """
    return np.bincount(np.unique(text_N, return_inverse=True)[1], weights=value_N)


def share_of_gap(
    before_N: np.ndarray,
    after_N: np.ndarray,
    best_N: np.ndarray,
    count_N: np.ndarray,
    text_N: np.ndarray,
    *,
    draws: int = 2000,
    seed: int = 0,
) -> Share:
    """(perplexity before - after) / (before - best).

    Args:
      before_N, after_N, best_N: summed log-likelihood of each document in nats: under the path of
        the router, of the other way, and under its best path.
      text_N: a number for the text that each document is a piece of.
    """

    count_T, *sums_T = (by_text(each, text_N) for each in (count_N, before_N, after_N, best_N))

    def share(weight_RT: np.ndarray) -> np.ndarray:
        tokens_R = weight_RT @ count_T
        before_R, after_R, best_R = (np.exp(-(weight_RT @ sum_T) / tokens_R) for sum_T in sums_T)
        gap_R = np.where(before_R == best_R, np.nan, before_R - best_R)  # nothing to gain
        return (before_R - after_R) / gap_R

    number = len(count_T)
    value, low, high = float(share(np.ones((1, number)))[0]), math.nan, math.nan
    if number >= LEAST_TEXTS and math.isfinite(value):  # else no drawing may have a gap
        low, high = np.nanquantile(share(drawings(number, draws, seed)), (0.025, 0.975))
    return Share(value, float(low), float(high))


def in_words(share: Share) -> str:
    """`45% [31%, 60%]`, or why there is less to say."""
    if not math.isfinite(share.value):
        return "no gap"
    interval = (
        "(too few texts)" if math.isnan(share.low) else f"[{share.low:.0%}, {share.high:.0%}]"
    )
    return f"{share.value:.0%} {interval}"
