"""Metrics for Prometheus: counters of the HTTP server, and the statistics of cache and loop. What
vLLM has as well is given a second time, under its names.
"""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from dipaco.serving.http.vllm_metrics import VllmCollector, VllmMetrics
from dipaco.serving.service import Service

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
