"""Metrics under vLLM's names: what its dashboards ask for is there, and counts this server."""

import asyncio
import re

import pytest

pytest.importorskip("starlette", reason="HTTP needs the `serve` extra")

from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from dipaco.serving.dispatch import PromptRouter
from dipaco.serving.http.app import make_app
from dipaco.serving.http.metrics import Metrics

# What the dashboard of vLLM's repository asks for
# (`examples/online_serving/prometheus_grafana/grafana.json`).
HISTOGRAMS = (
    *(
        "e2e_request_latency_seconds",
        "time_per_output_token_seconds",
        "inter_token_latency_seconds",
    ),
    "time_to_first_token_seconds",
)
ASKED_FOR = {
    *(f"{name}_{part}" for name in HISTOGRAMS[:2] for part in ("bucket", "sum", "count")),
    *(f"{name}_bucket" for name in (*HISTOGRAMS, "request_prompt_tokens")),
    *("request_generation_tokens_bucket", "request_max_num_generation_tokens_sum"),
    *(f"request_{stage}_time_seconds_sum" for stage in ("queue", "prefill", "decode")),
    *(f"{name}_total" for name in ("prompt_tokens", "generation_tokens", "request_success")),
    *("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"),
}
STAGES = ("queue", "prefill", "decode")


def samples(client):
    """(name, other labels) -> value, of vLLM's names."""
    text = client.get("/metrics").text
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("vllm:")
    }


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
        assert client.post("/v1/completions", json=body).status_code == 200
        assert asked_for(client) == before + 3


def test_what_dashboards_for_vllm_ask_for_counts_requests_by_model(service, prompts):
    with TestClient(make_app(service)) as client:
        body = {"model": "toy", "prompt": prompts[0], "max_tokens": 12, "temperature": 0}
        answer = client.post("/v1/completions", json=body | {"n": 2}).json()
        client.post("/v1/completions", json=body | {"model": "toy/dense", "stream": True})
        found = samples(client)

        def value(name, model="toy", **more):
            labels = {"model_name": model, "engine": "0"} | more
            return found[f"vllm:{name}", frozenset(labels.items())]

        assert {name.removeprefix("vllm:") for name, _ in found} >= ASKED_FOR
        tokens = answer["usage"]["prompt_tokens"]
        assert value("prompt_tokens_total") == 2 * tokens, "a request is a choice"
        assert value("generation_tokens_total") == 24
        assert value("generation_tokens_total", "toy/dense") == 12
        assert value("request_success_total", finished_reason="length") == 2
        assert value("time_to_first_token_seconds_count") == 2
        assert value("inter_token_latency_seconds_count") == 22
        assert value("time_per_output_token_seconds_count", "toy/dense") == 11
        assert value("request_generation_tokens_sum") == 24
        assert value("e2e_request_latency_seconds_count") == 2
        whole = value("e2e_request_latency_seconds_sum")
        parts = value("time_to_first_token_seconds_sum") + value("inter_token_latency_seconds_sum")
        assert 0 < parts <= whole
        stages = [value(f"request_{stage}_time_seconds_sum") for stage in STAGES]
        assert min(stages[:2]) > 0 <= stages[2], "on a busy machine all tokens come at once"
        assert sum(stages[:2]) == pytest.approx(value("time_to_first_token_seconds_sum"))
        assert sum(stages) <= whole
        assert value("request_max_num_generation_tokens_sum") == 24
        assert value("num_requests_running") == value("num_requests_waiting") == 0
        assert value("kv_cache_usage_perc") == 0


def test_a_prompt_that_is_only_echoed_has_no_first_token(service, prompts):
    with TestClient(make_app(service)) as client:

        def first_tokens():
            text = client.get("/metrics").text
            found = re.search(r"^vllm:time_to_first_token_seconds_count\{.*\} (\S+)", text, re.M)
            return float(found[1]) if found else 0.0

        body = {"model": "toy", "prompt": prompts[0], "max_tokens": 0, "echo": True, "logprobs": 1}
        assert client.post("/v1/completions", json=body).status_code == 200
        assert first_tokens() == 0
        assert client.post("/v1/completions", json=body | {"max_tokens": 2}).status_code == 200
        assert first_tokens() == 1


def test_the_time_to_the_first_token_has_all_that_a_client_waits_for(service, prompts, monkeypatch):
    names = ("time_to_first_token", "request_queue_time", "e2e_request_latency")
    labels = frozenset({"model_name": "toy", "engine": "0"}.items())
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
        seconds = f"vllm:{name}_seconds_sum", labels
        assert found[seconds] - before.get(seconds, 0) > 3 * 0.3, name
    assert waiting == [3]


def test_tokens_after_a_stop_string_are_counted_in_no_usage_and_no_metric(service, prompts):
    labels = frozenset({"model_name": "toy", "engine": "0"}.items())
    names = ("generation_tokens_total", "request_generation_tokens_sum")
    body = {"model": "toy", "prompt": prompts[0], "max_tokens": 12, "temperature": 0}
    with TestClient(make_app(service)) as client:
        text = client.post("/v1/completions", json=body).json()["choices"][0]["text"]
        before = samples(client)
        answer = client.post("/v1/completions", json=body | {"stop": text[1]}).json()
        found = samples(client)
    made = answer["usage"]["completion_tokens"]
    assert made < 4, "tokens that came together with these were left out"
    for name in names:
        assert found[f"vllm:{name}", labels] - before[f"vllm:{name}", labels] == made, name


def test_a_request_that_fails_is_aborted_and_no_longer_open(service, prompts, monkeypatch):
    with TestClient(make_app(service), raise_server_exceptions=False) as client:
        with monkeypatch.context() as patch:
            patch.setattr(service.loop, "submit", lambda *_, **__: 1 / 0)
            body = {"model": "toy", "prompt": prompts[0], "n": 3}
            assert client.post("/v1/completions", json=body).status_code == 500
        found = samples(client)
        labels = frozenset({"model_name": "toy", "engine": "0"}.items())
        aborted = labels | {("finished_reason", "abort")}
        assert found["vllm:request_success_total", aborted] == 3
        assert found["vllm:num_requests_waiting", labels] == 0
