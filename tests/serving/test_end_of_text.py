"""A text ends at its end token, unless it is ignored or comes too early."""

import asyncio
import json

import numpy as np
import pytest

from dipaco.data.config import END_OF_TEXT
from dipaco.serving.decoding.sampling import SamplingSettings
from dipaco.serving.decoding.stream import Finish
from dipaco.serving.fair_threads import FairThreads
from dipaco.serving.path_admission import PathAdmission
from dipaco.serving.prompt_router import PromptRouter
from tests.support.serving_rig import (
    error_of,
    ids,
    make_loop,
    read,
    request,
    route,
    run_until_idle,
)

WARM = SamplingSettings(temperature=1.0)


@pytest.fixture(scope="module")
def loop():
    return make_loop()


def made_by(loop, **more) -> list[int]:
    stream = loop.submit(request(max_new_tokens=24, **more))
    run_until_idle(loop)
    return ids(stream)


@pytest.mark.parametrize("sampling", [SamplingSettings(), WARM], ids=["greedy", "drawn"])
def test_a_stop_token_is_not_made_before_the_fewest_tokens(loop, sampling):
    free = made_by(loop, sampling=sampling, seed=1)
    stop = free[5]
    assert made_by(loop, sampling=sampling, seed=1, stop_ids=frozenset({stop}))[-1] == stop
    masked = made_by(loop, sampling=sampling, seed=1, stop_ids=frozenset({stop}), min_new_tokens=9)
    assert len(masked) > 9
    assert stop not in masked[:9]
    if sampling.temperature == 0:  # nothing else changes before it
        assert masked[: free.index(stop)] == free[: free.index(stop)]


def test_only_the_row_that_asks_is_masked(loop):
    free = made_by(loop)
    stop = frozenset({free[3]})
    streams = [
        loop.submit(request(max_new_tokens=24, **more))
        for more in ({}, {"stop_ids": stop}, {"stop_ids": stop, "min_new_tokens": 24})
    ]
    run_until_idle(loop)
    (all_, _), (stopped, end), (masked, masked_end) = map(read, streams)
    assert [token.id for token in all_] == free
    assert [token.id for token in stopped] == free[: free.index(free[3]) + 1]
    assert end == Finish("stop")
    assert free[3] not in {token.id for token in masked}
    assert (len(masked), masked_end) == (24, Finish("length"))


def test_more_tokens_than_any_context_holds_end_no_other_row(loop):
    free = made_by(loop)
    stop, most = frozenset({free[3]}), 2**31 - 1
    streams = [
        loop.submit(request(max_new_tokens=24)),
        loop.submit(request(max_new_tokens=most, min_new_tokens=most, stop_ids=stop)),
    ]
    run_until_idle(loop)
    (undisturbed, end), (masked, masked_end) = map(read, streams)
    assert [token.id for token in undisturbed] == free
    assert (end, masked_end) == (Finish("length"), Finish("length"))
    assert free[3] not in {token.id for token in masked}


# --- over HTTP --------------------------------------------------------------------------------

LIKELY = {"temperature": 2, "max_tokens": 40, "n": 30, "seed": 3}  # some of 1,200 tokens end


@pytest.fixture(scope="module")
def some_text(prompts) -> dict:
    return {"model": "toy", "prompt": prompts[0], "path": 1, "logprobs": 0} | LIKELY


def complete(client, body):
    answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_text_ends_at_its_end_token_which_is_not_shown(client, some_text):
    answer = complete(client, some_text)
    ended = [c for c in answer["choices"] if c["finish_reason"] == "stop"]
    cut = [c for c in answer["choices"] if c["finish_reason"] == "length"]
    assert ended
    assert cut
    for choice in answer["choices"]:
        assert END_OF_TEXT not in choice["logprobs"]["tokens"]
    assert all(len(c["logprobs"]["tokens"]) < 40 for c in ended)
    made = sum(len(c["logprobs"]["tokens"]) for c in answer["choices"])
    assert answer["usage"]["completion_tokens"] == made + len(ended)

    ignored = complete(client, some_text | {"ignore_eos": True})["choices"]
    assert {choice["finish_reason"] for choice in ignored} == {"length"}
    for choice, other in zip(answer["choices"], ignored, strict=True):
        known = choice["logprobs"]["tokens"]
        assert other["logprobs"]["tokens"][: len(known)] == known
        if choice["finish_reason"] == "stop":
            assert other["logprobs"]["tokens"][len(known)] == END_OF_TEXT

    masked = complete(client, some_text | {"min_tokens": 40})["choices"]
    assert {choice["finish_reason"] for choice in masked} == {"length"}
    assert not any(END_OF_TEXT in choice["logprobs"]["tokens"] for choice in masked)


def test_a_stream_that_ends_by_itself_ends_cleanly(client, some_text):
    whole = complete(client, some_text)["choices"]
    answer = client.post("/v1/completions", json=some_text | {"stream": True})
    assert answer.text.endswith("data: [DONE]\n\n")
    texts, reasons = [""] * 30, [None] * 30
    for line in answer.text.split("\n\n")[:-2]:
        for choice in json.loads(line.removeprefix("data: "))["choices"]:
            assert reasons[choice["index"]] is None  # nothing comes after the end
            texts[choice["index"]] += choice["text"]
            reasons[choice["index"]] = choice["finish_reason"]
    assert texts == [choice["text"] for choice in whole]
    assert reasons == [choice["finish_reason"] for choice in whole]


def test_an_empty_prompt_is_the_start_of_a_text(client, service):
    start = service.edges.start
    body = {"model": "toy", "temperature": 0, "max_tokens": 8}
    empty, named = (complete(client, body | {"prompt": given}) for given in ("", [start]))
    assert empty["choices"][0]["text"] == named["choices"][0]["text"] != ""
    assert empty["usage"]["prompt_tokens"] == 1


def test_the_router_reads_what_follows_the_start_token(service, prompts):
    for prompt in prompts:
        (tokens,) = service.tokenizer.encode([prompt])
        with_start = np.concatenate([[service.edges.start], tokens]).astype(np.int32)
        alone = route(service, service.releases.current, tokens)
        np.testing.assert_array_equal(
            route(service, service.releases.current, with_start).scores, alone.scores
        )


def test_so_does_the_router_that_was_trained_to_re_route(service, monkeypatch):
    seen = []

    class Trained:
        def next_path(self, text):
            seen.append(text.tolist())
            return 0

    served = service.releases.current
    monkeypatch.setattr(service, "_rerouters", {served.digest: Trained()})
    text = np.array([service.edges.start, 5, 6], np.int32)

    async def reroute(text):
        router = PromptRouter(service, PathAdmission(service.cache), FairThreads(1, "test"))
        return await router.reroute(served, text, "someone")

    assert asyncio.run(reroute(text)).tokens_read == 2
    asyncio.run(reroute(text[1:]))
    asyncio.run(reroute(text[:1]))
    assert seen == [[5, 6], [5, 6], [service.edges.start]]


@pytest.mark.parametrize("min_tokens", [41, -1, "3", 1.5])
def test_a_bad_fewest_number_of_tokens_is_refused(client, some_text, min_tokens):
    answer = client.post("/v1/completions", json=some_text | {"min_tokens": min_tokens})
    error_of(answer, 400, param="min_tokens")
