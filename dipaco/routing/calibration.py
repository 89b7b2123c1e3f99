"""Calibration: a bias for every path, so that each gets its target share of the documents.

The most accurate classifier gives rare paths fewer documents than their labels, and some none. A
path without documents never learns. DiPaCo (arXiv 2403.10616) section 2.4 trains a bias after the
classifier. Here it is solved for: the biases are the prices of `capacity`, with bounds per path.
"""

from collections.abc import Sequence

import numpy as np

from dipaco.errors import BadSetting
from dipaco.routing.capacity import balancing_prices

TOLERANCE = 0.05  # largest difference of a share from its target, as a part of the target


def target_share(
    label_N: np.ndarray,
    num_paths: int,
    *,
    given: Sequence[float] | None,
    floor: float,
    capacity: float | None,
) -> np.ndarray:
    """The target share of each path: float64 [P], summing to one.

    Args:
      given: the shares (`routing.target_share`). None: the labels' shares, bounded by `floor` and
        `capacity` times the mean share, with no path left empty.
      floor, capacity: as in `RoutingConfig`.

    Raises:
      BadSetting: not as many shares as paths, or a share of less than one document.
    """
    least = 1 / len(label_N)
    if given is not None:
        share_P = np.array(given, np.float64)
        if len(share_P) != num_paths:
            raise BadSetting(
                name="routing.target_share",
                value=tuple(given),
                expected=f"a share for each of {num_paths} paths, and {len(share_P)} are given",
            )
        if share_P.min() < least:
            raise BadSetting(
                name="routing.target_share",
                value=tuple(given),
                expected=f"at least one of the {len(label_N)} router documents for each path: "
                "shares below are empty paths",
            )
        return share_P / share_P.sum()
    label_share_P = np.bincount(label_N, minlength=num_paths) / len(label_N)
    low = max(floor / num_paths, least)
    high = 1.0 if capacity is None else max(capacity / num_paths, low)
    return _bounded(label_share_P, low, high)


def calibrate(
    logit_NP: np.ndarray, share_P: np.ndarray, within: tuple[int, int] | None = None
) -> np.ndarray:
    """The bias of every path under which argmax(logit + bias) gives it its share.

    Args:
      logit_NP: [N, P] scores of N documents, higher for better paths.
      share_P: [P] target shares that sum to one, each at least 1 / N.
      within: the least and the most documents of a path, from `capacity.bounds`. The targets keep
        these bounds, and a path may miss its target but not a bound. None = no bounds.

    Returns:
      float64 [P], the highest is 0. Every path's share of these documents is within `TOLERANCE` of
      its target, or the whole number of documents next to it, as far as documents of equal scores
      allow.
    """
    count_P = share_P * len(logit_NP)
    slack_P = TOLERANCE * count_P
    # 1e-6 allows for rounding: without it a target of exactly 8 documents could become 7.
    least_P = np.floor(np.minimum(np.ceil(count_P - slack_P), count_P) + 1e-6)
    most_P = np.ceil(np.maximum(np.floor(count_P + slack_P), count_P) - 1e-6)
    least_P = np.maximum(least_P, 1).astype(np.int64)
    most_P = most_P.astype(np.int64)
    if within is not None:
        least, most = within
        least_P, most_P = np.maximum(least_P, least), np.minimum(most_P, most)
    return -balancing_prices(-np.asarray(logit_NP, np.float64), least_P, most_P)


def is_near(count_P: np.ndarray, share_P: np.ndarray) -> bool:
    """True if the shares of the documents meet their targets within `TOLERANCE`."""
    wanted_P = share_P * count_P.sum()
    return bool((abs(count_P - wanted_P) <= np.maximum(TOLERANCE * wanted_P, 1)).all())


def _bounded(share_P: np.ndarray, low: float, high: float) -> np.ndarray:
    """Shares proportional to these, each bounded by `low` and `high`, that sum to one."""
    smallest, largest = 0.0, 1.0 / max(share_P[share_P > 0].min(), 1e-12)
    for _ in range(100):  # bisection: the sum rises with the factor
        factor = (smallest + largest) / 2
        if np.clip(factor * share_P, low, high).sum() < 1:
            smallest = factor
        else:
            largest = factor
    held_P = np.clip(largest * share_P, low, high)
    missing = 1 - held_P.sum()  # if all paths with labels are at their bound, the others get it
    room_P = (high - held_P) if missing > 0 else (held_P - low)
    return held_P + missing * room_P / max(room_P.sum(), 1e-12)
