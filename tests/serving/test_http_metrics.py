"""Metrics under vLLM's names: what its dashboards ask for is there, and counts this server."""

import asyncio
import re

import pytest

pytest.importorskip("starlette", reason="HTTP needs the `serve` extra")

import prometheus_client
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from dipaco.serving.dispatch import PromptRouter
from dipaco.serving.http.app import make_app
from dipaco.serving.http.metrics import BulkHistogram, Metrics
from tests.support.serving_rig import completion

# What the dashboard of vLLM's repository asks for
# (`examples/online_serving/prometheus_grafana/grafana.json`).
HISTOGRAMS = (
    "e2e_request_latency_seconds",
    "time_per_output_token_seconds",
    "inter_token_latency_seconds",
    "time_to_first_token_seconds",
)
STAGES = ("queue", "prefill", "decode")
ASKED_FOR = {
    *(f"{name}_{part}" for name in HISTOGRAMS[:2] for part in ("bucket", "sum", "count")),
    *(f"{name}_bucket" for name in (*HISTOGRAMS, "request_prompt_tokens")),
    *("request_generation_tokens_bucket", "request_max_num_generation_tokens_sum"),
    *(f"request_{stage}_time_seconds_sum" for stage in STAGES),
    *(f"{name}_total" for name in ("prompt_tokens", "generation_tokens", "request_success")),
    *("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"),
}


def samples(client):
    """(name, other labels) -> value, of vLLM's names."""
    text = client.get("/metrics").text
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("vllm:")
    }


def of(name, model="toy", **more):
    """The key of a sample."""
    return f"vllm:{name}", frozenset({"model_name": model, "engine": "0", **more}.items())


def test_programs_of_routing_and_of_the_loop_are_counted_together_at_the_start(service):
    assert {total for _, _, total in service.told} == {len(service.told)}
    assert service.told[0][0] == "compiling routing of 1 prompt"
    assert service.told[-1][0].startswith("compiling decoding ")


def test_hits_and_misses_are_times_that_a_path_was_asked_for(service, prompts):
    """Each choice of a request asks for its path."""

    def asked_for(client):
        families = text_string_to_metric_families(client.get("/metrics").text)
        found = [each for each in families if re.fullmatch("dipaco_cache_(hits|misses)", each.name)]
        assert {each.documentation.partition(" that was ")[0] for each in found} == {
            "Times a path was asked for"
        }
        return sum(sample.value for each in found for sample in each.samples)

    with TestClient(make_app(service)) as client:
        before = asked_for(client)
        body = {"model": "toy", "prompt": prompts[0], "max_tokens": 1, "path": 0, "n": 3}
        completion(client, body)
        assert asked_for(client) == before + 3


def test_what_dashboards_for_vllm_ask_for_counts_requests_by_model(service, prompts):
    with TestClient(make_app(service)) as client:
        body = {"model": "toy", "prompt": prompts[0], "max_tokens": 12, "temperature": 0}
        answer = completion(client, body | {"n": 2})
        client.post("/v1/completions", json=body | {"model": "toy/dense", "stream": True})
        found = samples(client)
        assert {name.removeprefix("vllm:") for name, _ in found} >= ASKED_FOR
        tokens = answer["usage"]["prompt_tokens"]
        assert found[of("prompt_tokens_total")] == 2 * tokens, "a request is a choice"
        assert found[of("generation_tokens_total")] == 24
        assert found[of("generation_tokens_total", "toy/dense")] == 12
        assert found[of("request_success_total", finished_reason="length")] == 2
        assert found[of("time_to_first_token_seconds_count")] == 2
        assert found[of("inter_token_latency_seconds_count")] == 22
        assert found[of("time_per_output_token_seconds_count", "toy/dense")] == 11
        assert found[of("request_generation_tokens_sum")] == 24
        assert found[of("e2e_request_latency_seconds_count")] == 2
        whole = found[of("e2e_request_latency_seconds_sum")]
        first = found[of("time_to_first_token_seconds_sum")]
        assert 0 < first + found[of("inter_token_latency_seconds_sum")] <= whole
        stages = [found[of(f"request_{stage}_time_seconds_sum")] for stage in STAGES]
        assert min(stages[:2]) > 0 <= stages[2], "on a busy machine all tokens come at once"
        assert sum(stages[:2]) == pytest.approx(first)
        assert sum(stages) <= whole
        assert found[of("request_max_num_generation_tokens_sum")] == 24
        assert found[of("num_requests_running")] == found[of("num_requests_waiting")] == 0
        assert found[of("kv_cache_usage_perc")] == 0


def test_a_prompt_that_is_only_echoed_has_no_first_token(service, prompts):
    body = {"model": "toy", "prompt": prompts[0], "echo": True, "logprobs": 1}
    with TestClient(make_app(service)) as client:
        for max_tokens in (0, 2):
            completion(client, body | {"max_tokens": max_tokens})
            num_first = samples(client).get(of("time_to_first_token_seconds_count"), 0)
            assert num_first == (max_tokens > 0)


def test_the_time_to_the_first_token_has_all_that_a_client_waits_for(service, prompts, monkeypatch):
    names = ("time_to_first_token", "request_queue_time", "e2e_request_latency")
    waiting, route = [], PromptRouter.route

    async def slowly(self, *args):
        await asyncio.sleep(0.3)
        waiting.append(metrics.requests.num_open["toy"])
        return await route(self, *args)

    metrics = Metrics()
    with TestClient(make_app(service, metrics)) as client:
        before = samples(client)
        monkeypatch.setattr(PromptRouter, "route", slowly)
        client.post("/v1/completions", json={"model": "toy", "prompt": prompts[0], "n": 3})
        found = samples(client)
    for name in names:
        seconds = of(f"{name}_seconds_sum")
        assert found[seconds] - before.get(seconds, 0) > 3 * 0.3, name
    assert waiting == [3]


def test_tokens_after_a_stop_string_are_counted_in_no_usage_and_no_metric(service, prompts):
    names = ("generation_tokens_total", "request_generation_tokens_sum")
    body = {"model": "toy", "prompt": prompts[0], "max_tokens": 12, "temperature": 0}
    with TestClient(make_app(service)) as client:
        text = completion(client, body)["choices"][0]["text"]
        before = samples(client)
        answer = completion(client, body | {"stop": text[1]})
        found = samples(client)
    made = answer["usage"]["completion_tokens"]
    assert made < 4, "tokens that came together with these were left out"
    for name in names:
        assert found[of(name)] - before[of(name)] == made, name


def test_a_request_that_fails_is_aborted_and_no_longer_open(service, prompts, monkeypatch):
    with TestClient(make_app(service), raise_server_exceptions=False) as client:
        with monkeypatch.context() as patch:
            patch.setattr(service.loop, "submit", lambda *_, **__: 1 / 0)
            body = {"model": "toy", "prompt": prompts[0], "n": 3}
            assert client.post("/v1/completions", json=body).status_code == 500
        found = samples(client)
        assert found[of("request_success_total", finished_reason="abort")] == 3
        assert found[of("num_requests_waiting")] == 0


BUCKETS = (0.1, 0.5, 1.0, 2.5)
SEEN = {("a", "0"): [(0.3, 5), (0.5, 2), (0.50001, 1), (7.0, 3)], ("b", "0"): [(0.0, 4)]}


def test_a_histogram_that_counts_many_equal_values_at_once_says_what_prometheus_says():
    theirs, ours = prometheus_client.CollectorRegistry(), prometheus_client.CollectorRegistry()
    plain = prometheus_client.Histogram(
        "x:seconds", "Seconds.", ("model", "engine"), buckets=BUCKETS, registry=theirs
    )
    bulk = BulkHistogram("x:seconds", "Seconds.", ("model", "engine"), BUCKETS, ours)
    for labels, values in SEEN.items():
        for value, number in values:
            bulk.observe(labels, value, number)
            for _ in range(number):
                plain.labels(*labels).observe(value)
    told, expected = lines_of(ours), lines_of(theirs)
    assert told.keys() == expected.keys()
    for line, value in expected.items():
        assert told[line] == pytest.approx(value)


def lines_of(registry):
    """What a scrape reads, without when each series began."""
    lines = prometheus_client.generate_latest(registry).decode().splitlines()
    values = (line.rsplit(" ", 1) for line in lines if "_created" not in line)
    return {name: value if name.startswith("#") else float(value) for name, value in values}
