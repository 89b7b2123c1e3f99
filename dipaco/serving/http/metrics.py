"""Metrics for Prometheus: counters of the HTTP server, and the statistics of cache and loop. What
vLLM has as well is given a second time, under its names.
"""

import bisect
import collections
import contextlib
import itertools
import time
from collections.abc import Generator, Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from dipaco.serving.decoding.loop import LoopStats
from dipaco.serving.service import Service

LABELS = ("model_name", "engine")
ENGINE = "0"  # vLLM numbers its engines. A server here is one
FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5)
BETWEEN_TOKENS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1)
REQUEST = (0.01, 0.03, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0)
FIRST, WHOLE = "time_to_first_token_seconds", "e2e_request_latency_seconds"
BETWEEN = ("inter_token_latency_seconds", "time_per_output_token_seconds")
QUEUE, PREFILL = "request_queue_time_seconds", "request_prefill_time_seconds"
DECODE = "request_decode_time_seconds"
# A request is one choice: its own length is the greatest.
LENGTHS = ("request_generation_tokens", "request_max_num_generation_tokens")
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)


class VllmMetrics:
    """Counters and histograms of requests. They are used in the event loop only."""

    def __init__(self, registry: CollectorRegistry):
        def counter(name: str, help_text: str, *labels: str) -> Counter:
            return Counter(f"vllm:{name}", help_text, (*LABELS, *labels), registry=registry)

        self.num_open: collections.Counter[str] = collections.Counter()  # requests, by model
        self.prompt_tokens = counter("prompt_tokens", "Tokens of prompts.")
        self.generation_tokens = counter("generation_tokens", "Tokens made.")
        self.success = counter(
            "request_success", "Requests that have ended, by how.", "finished_reason"
        )
        made = "Tokens made in a request."
        between = "Between two tokens; those that come together share the time since the last."
        self._histograms = {
            name: BulkHistogram(f"vllm:{name}", help_text, LABELS, buckets, registry)
            for name, help_text, buckets in (
                (FIRST, "From a request to its first token.", FIRST_TOKEN),
                *((name, between, BETWEEN_TOKENS + REQUEST[3:]) for name in BETWEEN),
                (WHOLE, "From a request to its last token.", REQUEST),
                (QUEUE, "From a request to its row of the cache.", REQUEST),
                (PREFILL, "From a request's row to its first token.", REQUEST),
                (DECODE, "From a request's first token to its last.", REQUEST),
                ("request_prompt_tokens", "Tokens of a prompt.", TOKENS),
                *((name, made, TOKENS) for name in LENGTHS),
            )
        }

    @contextlib.contextmanager
    def routing(self, model: str, number: int) -> Generator[None]:
        """So many requests wait for their paths to be chosen."""
        self.num_open[model] += number
        try:
            yield
        finally:
            self.num_open[model] -= number

    def begin(self, model: str, prompt_tokens: int, came_seconds: float) -> "RequestTimes":
        """Begins a request with so many tokens, which came at that time (`time.monotonic`)."""
        self.num_open[model] += 1
        self.prompt_tokens.labels(model, ENGINE).inc(prompt_tokens)
        self.observe(model, "request_prompt_tokens", prompt_tokens)
        return RequestTimes(self, model, came_seconds)

    def observe(self, model: str, name: str, value: float, number: int = 1) -> None:
        """A request had such a value, so many times."""
        self._histograms[name].observe((model, ENGINE), value, number)


class RequestTimes:
    """When one request came, and its tokens."""

    def __init__(self, metrics: VllmMetrics, model: str, came_seconds: float):
        self._metrics, self._model = metrics, model
        self._came_seconds = self._latest_seconds = came_seconds
        self._first_seconds = came_seconds  # time of its first token
        self._row_seconds: float | None = None
        self._num_tokens, self._is_over = 0, False

    def add_tokens(self, number: int, row_seconds: float | None, now_seconds: float) -> None:
        """Counts tokens that came together, without those after the text's end. The request first
        got a row at `row_seconds`, if that is known here.
        """
        since, self._latest_seconds = now_seconds - self._latest_seconds, now_seconds
        self._metrics.generation_tokens.labels(self._model, ENGINE).inc(number)
        if not self._num_tokens:
            self._first_seconds, self._row_seconds = now_seconds, row_seconds
            self._metrics.observe(self._model, FIRST, since)
            since = 0.0  # the others of the first block came with the first token
        later = number - (not self._num_tokens)
        self._num_tokens += number
        if later:
            for name in BETWEEN:
                self._metrics.observe(self._model, name, since / later, later)

    def end(self, reason: str) -> None:
        """The request has ended, or was given up (`abort`). Only the first call counts."""
        if self._is_over:
            return
        self._is_over = True
        self._metrics.num_open[self._model] -= 1
        self._metrics.success.labels(self._model, ENGINE, reason).inc()
        seconds = {}
        if reason != "abort":
            seconds[WHOLE] = time.monotonic() - self._came_seconds
            if self._num_tokens:
                seconds[DECODE] = self._latest_seconds - self._first_seconds
            if self._row_seconds is not None:
                seconds[PREFILL] = self._first_seconds - self._row_seconds
                seconds[QUEUE] = self._row_seconds - self._came_seconds
        for name, value in (dict.fromkeys(LENGTHS, self._num_tokens) | seconds).items():
            self._metrics.observe(self._model, name, value)


class BulkHistogram(Collector):
    """A Prometheus histogram that counts many equal values at once.

    The tokens of a block come together, thousands a second. `prometheus_client`'s own histogram
    takes three locks for each. This one is written in one thread, and read in any.

    Args:
      name, help_text: as Prometheus shows them.
      buckets: upper bounds, ascending, without infinity.
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
        """Yields the form that Prometheus has: each bucket counts all values up to its bound."""
        family = HistogramMetricFamily(self._name, self._help_text, labels=self._label_names)
        bounds = [floatToGoString(bound) for bound in (*self._buckets, float("inf"))]
        for labels, counts in list(self._counts.items()):
            so_far = itertools.accumulate(counts)
            buckets = list(zip(bounds, map(float, so_far), strict=True))
            family.add_metric(labels, buckets, self._sums[labels])
        yield family


SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """One registry for one server."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()

        def counter(name: str, help_text: str, *labels: str) -> Counter:
            return Counter(f"dipaco_{name}", help_text, labels, registry=registry)

        def histogram(name: str, help_text: str, *labels: str) -> Histogram:
            return Histogram(
                f"dipaco_{name}_seconds", help_text, labels, registry=registry, buckets=SECONDS
            )

        self.answers = counter("answers", "HTTP answers begun.", "endpoint", "status")
        self.prompts = counter("prompts", "Prompts, by the path that took them.", "model", "path")
        self.hang_ups = counter(
            "hang_ups", "Clients that disconnected before their answer was complete."
        )
        self.failovers = counter("failovers", "Requests that an upstream did not answer.")
        self.reroutes = counter("reroutes", "Times a text changed its path.")
        self.reroute_tokens = counter("reroute_tokens", "Tokens read again for that.")
        self.reroute_choices = counter("reroute_choices", "Times a path was chosen again.")
        self.reroute_router_tokens = counter("reroute_router_tokens", "Tokens read to choose it.")
        self.parsing = histogram(
            "parsing", "Checking one request, tokenizing its prompts, compiling its schema."
        )
        self.routing = histogram("routing", "Routing the prompts of one request.")
        self.cold_path = histogram("cold_path", "Reading a path that was not in memory.")
        self.requests = VllmMetrics(registry)

    def watch(self, service: Service) -> None:
        """Adds the statistics of its cache, loop and release."""
        self._registry.register(_ServiceCollector(service, self.requests))

    def text(self) -> bytes:
        return generate_latest(self._registry)


class _ServiceCollector(Collector):
    """The state of cache, loop and release, read at each scrape, so nothing is counted twice."""

    def __init__(self, service: Service, requests: VllmMetrics):
        self._service, self._requests = service, requests

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        service = self._service
        cache, loop, routing = service.cache.stats(), service.loop.stats(), service.routing_stats()
        phase = service.releases.current.release.phase
        gauges = {
            "release_phase": ("Phase of the release.", phase),
            "cache_paths": ("Paths in memory.", cache.paths),
            "cache_paths_in_use": ("Paths in memory that a request uses.", cache.pinned),
            "cache_modules": ("Modules in memory.", cache.modules),
            "cache_bytes": ("Bytes of modules in memory.", cache.num_bytes),
            "cache_max_bytes": ("Bytes that modules may take.", service.cache.max_bytes),
            "waiting_requests": ("Requests that wait for a row.", loop.num_waiting),
            "rows": ("Requests being decoded.", sum(loop.rows_per_path.values())),
        }
        if loop.num_replicas is not None:
            gauges["replicas"] = ("Replicas of the loop that answer.", loop.num_replicas)
        counters = {
            "routed_prefixes": ("Prefixes that were routed, and not cached.", routing.prompts),
            "routed_prefix_seconds": ("Time spent on routing them.", routing.seconds),
            "routing_base_tokens": ("Tokens that the base model read for it.", routing.base_tokens),
            "routing_prefills": ("Times a path read a prefix for it.", routing.prefills),
            "routing_path_tokens": ("Tokens that paths read for it.", routing.path_tokens),
            "cache_hits": ("Times a path was asked for that was in memory.", cache.hits),
            "cache_misses": ("Times a path was asked for that was not in memory.", cache.misses),
            "cache_evictions": ("Paths evicted.", cache.evictions),
            "rows_paused": ("Times a row was paused for another client.", loop.num_paused),
            "prefill_seconds": ("Time spent on prefill.", loop.prefill_seconds),
            "decode_seconds": ("Time spent on decoding.", loop.decode_seconds),
        }
        for name, (help_text, value) in gauges.items():
            yield GaugeMetricFamily(f"dipaco_{name}", help_text, value)
        for name, (help_text, value) in counters.items():
            yield CounterMetricFamily(f"dipaco_{name}", help_text, value)
        yield from self._of_vllm(loop)

    def _of_vllm(self, loop: LoopStats) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        models = list(self._service.models)
        running: collections.Counter[str] = collections.Counter()
        for (release, _), rows in loop.rows_per_path.items():
            for model in models:
                running[model.name] += rows * (model.releases.find(release) is not None)
        capacity = self._service.settings.limits.rows * max(1, loop.num_replicas or 1)
        num_open, usage = self._requests.num_open, running.total() / capacity
        waiting = "Requests that wait: to be routed, for their path, or for a row."
        for name, help_text, value_of in (
            ("num_requests_running", "Requests being decoded.", running.__getitem__),
            ("num_requests_waiting", waiting, lambda name: max(0, num_open[name] - running[name])),
            ("kv_cache_usage_perc", "Rows of the cache in use; 1 = all.", lambda name: usage),
        ):
            family = GaugeMetricFamily(f"vllm:{name}", help_text, labels=LABELS)
            for model in models:
                family.add_metric((model.name, ENGINE), value_of(model.name))
            yield family
        paused = "Times a row was paused for another client."
        preemptions = CounterMetricFamily("vllm:num_preemptions", paused, labels=LABELS)
        preemptions.add_metric((self._service.name, ENGINE), loop.num_paused)
        yield preemptions
