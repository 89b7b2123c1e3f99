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

from dipaco.serving.service import Service

LABELS = ("model_name", "engine")
ENGINE = "0"  # vLLM numbers its engines. A server here is one
FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5)
BETWEEN_TOKENS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1)
REQUEST = (0.01, 0.03, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)


class RequestTimes:
    """When one request came, and its tokens."""

    def __init__(self, came_seconds: float):
        self.came_seconds = self.latest_seconds = came_seconds
        self.first_seconds = came_seconds  # time of its first token
        self.row_seconds: float | None = None  # when it first got a row. None: not known here
        self.num_tokens = 0


class VllmMetrics:
    """Counters and histograms of requests. They are used in the event loop only."""

    def __init__(self, registry: CollectorRegistry):
        def counter(name: str, help_text: str, *labels: str) -> Counter:
            return Counter(f"vllm:{name}", help_text, (*LABELS, *labels), registry=registry)

        def histogram(name: str, help_text: str, buckets: tuple[float, ...]) -> BulkHistogram:
            return BulkHistogram(f"vllm:{name}", help_text, LABELS, buckets, registry)

        self.num_open: collections.Counter[str] = collections.Counter()  # requests, by model
        self._prompt_tokens = counter("prompt_tokens", "Tokens of prompts.")
        self._generation_tokens = counter("generation_tokens", "Tokens made.")
        self._success = counter(
            "request_success", "Requests that have ended, by how.", "finished_reason"
        )
        self._first_token = histogram(
            "time_to_first_token_seconds", "From a request to its first token.", FIRST_TOKEN
        )
        between = "Between two tokens; those that come together share the time since the last."
        self._between_tokens = [
            histogram(name, between, BETWEEN_TOKENS + REQUEST[3:])
            for name in ("inter_token_latency_seconds", "time_per_output_token_seconds")
        ]
        self._latency = histogram(
            "e2e_request_latency_seconds", "From a request to its last token.", REQUEST
        )
        self._in_queue = histogram(
            "request_queue_time_seconds", "From a request to its row of the cache.", REQUEST
        )
        self._in_prefill = histogram(
            "request_prefill_time_seconds", "From a request's row to its first token.", REQUEST
        )
        self._in_decode = histogram(
            "request_decode_time_seconds", "From a request's first token to its last.", REQUEST
        )
        self._prompt_lengths = histogram("request_prompt_tokens", "Tokens of a prompt.", TOKENS)
        made = "Tokens made in a request."
        self._lengths = [
            histogram(name, made, TOKENS)
            for name in ("request_generation_tokens", "request_max_num_generation_tokens")
        ]

    @contextlib.contextmanager
    def routing(self, model: str, number: int) -> Generator[None]:
        """So many requests wait for their paths to be chosen."""
        self.num_open[model] += number
        try:
            yield
        finally:
            self.num_open[model] -= number

    def begin(self, model: str, prompt_tokens: int, came_seconds: float) -> RequestTimes:
        """Begins a request with so many tokens that has its path. It came at that time
        (`time.monotonic`).
        """
        self.num_open[model] += 1
        self._prompt_tokens.labels(model, ENGINE).inc(prompt_tokens)
        self._prompt_lengths.observe((model, ENGINE), prompt_tokens)
        return RequestTimes(came_seconds)

    def add_tokens(
        self,
        model: str,
        times: RequestTimes,
        number: int,
        row_seconds: float | None,
        now_seconds: float,
    ) -> None:
        """Counts tokens of a request that came together, without those after its text's end.

        Args:
          number: how many tokens came.
          row_seconds: when the request first got a row. None = not known here.
        """
        since = now_seconds - times.latest_seconds
        times.latest_seconds = now_seconds
        self._generation_tokens.labels(model, ENGINE).inc(number)
        if not times.num_tokens:
            times.first_seconds, times.row_seconds = now_seconds, row_seconds
            self._first_token.observe((model, ENGINE), since)
            since = 0.0  # the others of the first block came with the first token
        later = number - (not times.num_tokens)
        times.num_tokens += number
        if later:
            for histogram in self._between_tokens:
                histogram.observe((model, ENGINE), since / later, later)

    def end(self, model: str, times: RequestTimes, reason: str) -> None:
        """A request has ended: by `stop` or `length`, or else it was given up (`abort`)."""
        self.num_open[model] -= 1
        self._success.labels(model, ENGINE, reason).inc()
        for histogram in self._lengths:  # a request is one choice: its own length is the greatest
            histogram.observe((model, ENGINE), times.num_tokens)
        if reason != "abort":
            now = time.monotonic()
            self._latency.observe((model, ENGINE), now - times.came_seconds)
            if times.num_tokens:
                decoding = times.latest_seconds - times.first_seconds
                self._in_decode.observe((model, ENGINE), decoding)
            if times.row_seconds is not None:
                prefill = times.first_seconds - times.row_seconds
                self._in_prefill.observe((model, ENGINE), prefill)
                self._in_queue.observe((model, ENGINE), times.row_seconds - times.came_seconds)


class VllmCollector(Collector):
    """The loop's state, read at each scrape."""

    def __init__(self, service: Service, metrics: VllmMetrics):
        self._service, self._metrics = service, metrics

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        loop = self._service.loop.stats()
        running: collections.Counter[str] = collections.Counter()
        for (release, _), rows in loop.rows_per_path.items():
            for model in self._service.models:
                if model.releases.find(release) is not None:
                    running[model.name] += rows
        capacity = self._service.settings.limits.rows * max(1, loop.num_replicas or 1)
        gauges = {
            "num_requests_running": ("Requests being decoded.", running),
            "num_requests_waiting": (
                "Requests that wait: to be routed, for their path, or for a row.",
                {
                    model.name: max(0, self._metrics.num_open[model.name] - running[model.name])
                    for model in self._service.models
                },
            ),
            "kv_cache_usage_perc": (
                "Rows of the cache in use; 1 = all.",
                {model.name: running.total() / capacity for model in self._service.models},
            ),
        }
        for name, (help_text, of_models) in gauges.items():
            family = GaugeMetricFamily(f"vllm:{name}", help_text, labels=LABELS)
            for model in self._service.models:
                family.add_metric((model.name, ENGINE), of_models.get(model.name, 0))
            yield family
        preemptions = CounterMetricFamily(
            "vllm:num_preemptions", "Times a row was paused for another client.", labels=LABELS
        )
        preemptions.add_metric((self._service.name, ENGINE), loop.num_paused)
        yield preemptions


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
        self.prompt_tokens = counter("prompt_tokens", "Tokens of prompts.")
        self.completion_tokens = counter("completion_tokens", "Tokens made.")
        self.hang_ups = counter(
            "hang_ups", "Clients that disconnected before their answer was complete."
        )
        self.failovers = counter("failovers", "Requests that an upstream did not answer.")
        self.reroutes = counter("reroutes", "Times a text changed its path.")
        self.reroute_tokens = counter("reroute_tokens", "Tokens read again for that.")
        self.reroute_choices = counter("reroute_choices", "Times a path was chosen again.")
        self.reroute_router_tokens = counter("reroute_router_tokens", "Tokens read to choose it.")
        self.first_token = histogram("first_token", "From a request to its first token.")
        self.parsing = histogram(
            "parsing", "Checking one request, tokenizing its prompts, compiling its schema."
        )
        self.routing = histogram("routing", "Routing the prompts of one request.")
        self.cold_path = histogram("cold_path", "Reading a path that was not in memory.")
        self.requests = VllmMetrics(registry)

    def watch(self, service: Service) -> None:
        """Adds the statistics of its cache, loop and release."""
        self._registry.register(_ServiceCollector(service))
        self._registry.register(VllmCollector(service, self.requests))

    def text(self) -> bytes:
        return generate_latest(self._registry)


class _ServiceCollector(Collector):
    """Reads the statistics at each scrape, so nothing is counted twice."""

    def __init__(self, service: Service):
        self._service = service

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        cache, loop = self._service.cache.stats(), self._service.loop.stats()
        routing = self._service.routing_stats()
        gauges = {
            "release_phase": (
                "Phase of the release.",
                self._service.releases.current.release.phase,
            ),
            "cache_paths": ("Paths in memory.", cache.paths),
            "cache_paths_in_use": ("Paths in memory that a request uses.", cache.pinned),
            "cache_modules": ("Modules in memory.", cache.modules),
            "cache_bytes": ("Bytes of modules in memory.", cache.num_bytes),
            "cache_max_bytes": ("Bytes that modules may take.", self._service.cache.max_bytes),
            "waiting_requests": ("Requests that wait for a row.", loop.num_waiting),
            "rows": ("Requests being decoded.", sum(loop.rows_per_path.values())),
            "tokens_per_second": (
                "Tokens per second of decoding, in the last minute; 0 = none were made.",
                loop.tokens_per_second,
            ),
        }
        counters = {
            "routed_prefixes": (
                "Prefixes of prompts that were routed; those routed before are cached.",
                routing.prompts,
            ),
            "routed_prefix_seconds": ("Time spent on routing them.", routing.seconds),
            "routing_base_tokens": ("Tokens that the base model read for it.", routing.base_tokens),
            "routing_prefills": (
                "Times a path read a prefix for it (routing by likelihood).",
                routing.prefills,
            ),
            "routing_path_tokens": ("Tokens that paths read for it.", routing.path_tokens),
            "cache_hits": ("Times a path was asked for that was in memory.", cache.hits),
            "cache_misses": ("Times a path was asked for that was not in memory.", cache.misses),
            "cache_evictions": ("Paths evicted.", cache.evictions),
            "rows_paused": ("Times a row was paused for another client.", loop.num_paused),
            "prefill_seconds": ("Time spent on prefill.", loop.prefill_seconds),
            "decode_seconds": ("Time spent on decoding.", loop.decode_seconds),
        }
        if loop.num_replicas is not None:
            gauges["replicas"] = ("Replicas of the loop that answer.", loop.num_replicas)
        for name, (help_text, value) in gauges.items():
            yield GaugeMetricFamily(f"dipaco_{name}", help_text, value)
        for name, (help_text, value) in counters.items():
            yield CounterMetricFamily(f"dipaco_{name}", help_text, value)
