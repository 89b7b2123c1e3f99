"""What the benchmarks say of ratios that were measured in pairs: a median and how sure it is."""

import math
from collections.abc import Sequence


def median_and_interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """The median of n ratios, and two of them between which the true median lies with 95 %.

    Order statistics: the number of ratios below the true median is binomial(n, 1/2), whatever their
    distribution. Fewer than six cannot be that sure; then it is the least and the greatest.
    """
    ordered, n = sorted(float(ratio) for ratio in ratios), len(ratios)
    middle = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
    below, chance = 0, 0.0
    while below < n // 2:
        chance += math.comb(n, below) / 2**n
        if chance > 0.025:
            break
        below += 1
    first = max(below - 1, 0)
    return middle, ordered[first], ordered[n - 1 - first]
