"""A text ends at its end token over HTTP, and begins at its start token."""

import numpy as np
import pytest

pytest.importorskip("starlette", reason="HTTP needs the `serve` extra")

from dipaco.data.config import END_OF_TEXT
from tests.support.serving_rig import completion, events_of, prompt_router, route

LIKELY = {"temperature": 2, "max_tokens": 40, "n": 30, "seed": 3}  # some of 1,200 tokens end


@pytest.fixture(scope="module")
def some_text(prompts) -> dict:
    return {"model": "toy", "prompt": prompts[0], "path": 1, "logprobs": 0} | LIKELY


def test_a_text_ends_at_its_end_token_which_is_not_shown(client, some_text):
    answer = completion(client, some_text)
    ended = [c for c in answer["choices"] if c["finish_reason"] == "stop"]
    cut = [c for c in answer["choices"] if c["finish_reason"] == "length"]
    assert ended
    assert cut
    for choice in answer["choices"]:
        assert END_OF_TEXT not in choice["logprobs"]["tokens"]
    assert all(len(c["logprobs"]["tokens"]) < 40 for c in ended)
    made = sum(len(c["logprobs"]["tokens"]) for c in answer["choices"])
    assert answer["usage"]["completion_tokens"] == made + len(ended)

    ignored = completion(client, some_text | {"ignore_eos": True})["choices"]
    assert {choice["finish_reason"] for choice in ignored} == {"length"}
    for choice, other in zip(answer["choices"], ignored, strict=True):
        known = choice["logprobs"]["tokens"]
        assert other["logprobs"]["tokens"][: len(known)] == known
        if choice["finish_reason"] == "stop":
            assert other["logprobs"]["tokens"][len(known)] == END_OF_TEXT

    masked = completion(client, some_text | {"min_tokens": 40})["choices"]
    assert {choice["finish_reason"] for choice in masked} == {"length"}
    assert not any(END_OF_TEXT in choice["logprobs"]["tokens"] for choice in masked)


def test_a_stream_that_ends_by_itself_ends_cleanly(client, some_text):
    whole = completion(client, some_text)["choices"]
    answer = client.post("/v1/completions", json=some_text | {"stream": True})
    texts, reasons = [""] * 30, [None] * 30
    for event in events_of(answer):
        for choice in event["choices"]:
            assert reasons[choice["index"]] is None  # nothing comes after the end
            texts[choice["index"]] += choice["text"]
            reasons[choice["index"]] = choice["finish_reason"]
    assert texts == [choice["text"] for choice in whole]
    assert reasons == [choice["finish_reason"] for choice in whole]


def test_an_empty_prompt_is_the_start_of_a_text(client, service):
    start = service.edges.start
    body = {"model": "toy", "temperature": 0, "max_tokens": 8}
    empty, named = (completion(client, body | {"prompt": given}) for given in ("", [start]))
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


async def test_so_does_the_router_that_was_trained_to_re_route(service, monkeypatch):
    seen = []

    class Trained:
        def next_path(self, text):
            seen.append(text.tolist())
            return 0

    served = service.releases.current
    monkeypatch.setattr(service.dispatcher, "rerouters", {served.digest: Trained()})
    text = np.array([service.edges.start, 5, 6], np.int32)
    router = prompt_router(service)
    told = [await router.reroute(served, each, "someone") for each in (text, text[1:], text[:1])]
    assert [next_path.tokens_read for next_path in told] == [2, 2, 1]
    assert seen == [[5, 6], [5, 6], [service.edges.start]]
