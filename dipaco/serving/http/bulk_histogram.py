"""A Prometheus histogram that counts many equal values at once.

The tokens of a block come together, thousands a second; `prometheus_client`'s own histogram takes
three locks for each.
"""

import bisect
import itertools
from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class BulkHistogram(Collector):
    """Written in one thread, and read in any.

    Args:
      name, help_text: as Prometheus shows them.
      label_names: of each series.
      buckets: upper bounds, ascending, without infinity.
      registry: that it is collected by.
    """

    def __init__(
        self,
        name: str,
        help_text: str,
        label_names: Sequence[str],
        buckets: Sequence[float],
        registry: CollectorRegistry,
    ):
        self._name, self._help_text, self._label_names = name, help_text, label_names
        self._buckets = tuple(buckets)
        self._counts: dict[tuple[str, ...], list[int]] = {}  # labels -> of each bucket, and beyond
        self._sums: dict[tuple[str, ...], float] = {}
        registry.register(self)

    def observe(self, labels: tuple[str, ...], value: float, number: int = 1) -> None:
        """A value that was seen so many times."""
        if labels not in self._counts:
            self._sums[labels] = 0.0
            self._counts[labels] = [0] * (len(self._buckets) + 1)
        self._counts[labels][bisect.bisect_left(self._buckets, value)] += number
        self._sums[labels] += number * value

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """As Prometheus has it: each bucket counts all values up to its bound."""
        family = HistogramMetricFamily(self._name, self._help_text, labels=self._label_names)
        bounds = [floatToGoString(bound) for bound in (*self._buckets, float("inf"))]
        for labels, counts in list(self._counts.items()):
            so_far = itertools.accumulate(counts)
            buckets = list(zip(bounds, map(float, so_far), strict=True))
            family.add_metric(labels, buckets, self._sums[labels])
        yield family
