"""Embeddings over HTTP are the features that the router reads, in OpenAI's shape."""

import asyncio
import base64
import contextlib
import json
import threading
from types import SimpleNamespace

import httpx
import msgspec
import numpy as np
import pytest

pytest.importorskip("starlette", reason="HTTP needs the `serve` extra")

from dipaco.runs.routing import features, prefixes_of
from dipaco.serving.http import embeddings
from dipaco.serving.http.app import make_app
from dipaco.serving.http.embeddings import MOST_REQUESTS, TEXTS_PER_TURN
from tests.support.serving_rig import ask_and_leave, error_of, until


def ask(client, given, **more):
    answer = client.post("/v1/embeddings", json={"model": "toy", "input": given} | more)
    assert answer.status_code == 200, answer.text
    return answer.json()


def expected(service, texts):
    ids = [service.tokenizer.encode([text])[0] for text in texts]
    vectors = features(service.run, *prefixes_of(service.run, ids), batch_size=4)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True), ids


def test_embeddings_are_the_routers_features_and_tokens_that_are_read_count(
    client, service, prompts
):
    texts = [*prompts[:5], "jijiwi mo" * 9]  # more than a batch; the last is longer than is read
    vectors, ids = expected(service, texts)
    answer = ask(client, texts)
    assert (answer["object"], answer["model"]) == ("list", "toy")
    assert [each["index"] for each in answer["data"]] == list(range(6))
    assert {each["object"] for each in answer["data"]} == {"embedding"}
    got = np.array([each["embedding"] for each in answer["data"]], np.float32)
    np.testing.assert_allclose(got, vectors, atol=1e-5)
    read = sum(min(len(each), 32) for each in ids)
    assert len(ids[-1]) > 32
    assert answer["usage"] == {"prompt_tokens": read, "total_tokens": read}


def test_base64_token_ids_and_dimensions(client, service, prompts):
    (plain,) = ask(client, prompts[0])["data"]
    (packed,) = ask(client, prompts[0], encoding_format="base64", user="u", dimensions=32)["data"]
    unpacked = np.frombuffer(base64.b64decode(packed["embedding"]), "<f4")
    assert unpacked.tolist() == plain["embedding"]
    (ids,) = service.tokenizer.encode([prompts[0]])
    assert ask(client, ids.tolist())["data"] == [plain]
    assert ask(client, [ids.tolist(), prompts[0].split()[0]][:1])["data"] == [plain]
    assert np.linalg.norm(plain["embedding"]) == pytest.approx(1, abs=1e-5)


def test_nothing_that_takes_long_for_many_texts_holds_the_event_loop(client, prompts, monkeypatch):
    """The texts are looked at in a thread, and each embedding is written by itself."""
    looked_in, num_written = [], []
    texts_of, encode = embeddings._texts, msgspec.json.encode

    def texts(body):
        looked_in.append(threading.current_thread().name)
        return texts_of(body)

    def written(value):
        num_written.append(len(encode(value)))
        return encode(value)

    monkeypatch.setattr(embeddings, "_texts", texts)
    monkeypatch.setattr(msgspec.json, "encode", written)
    answer = ask(client, prompts[:5] * 8)
    assert [each["index"] for each in answer["data"]] == list(range(40))
    assert max(num_written) < 1.5 * max(len(json.dumps(each)) for each in answer["data"])
    (name,) = looked_in
    assert name.startswith("embeddings")


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": [300]}, "input"),
        ({"input": ["a", [1]]}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": None}, "input"),
        ({"dimensions": 8}, "dimensions"),
        ({"encoding_format": "int8"}, "encoding_format"),
        ({"model": "toy/dense"}, "model"),
        ({"inputs": "a"}, "inputs"),
    ],
    ids=str,
)
def test_a_wrong_request_is_refused(client, change, param):
    body = {"model": "toy", "input": "jiji"} | change
    error_of(client.post("/v1/embeddings", json=body), 400, param)
    gpt = client.post("/v1/embeddings", json=body | {"input": "a", "model": "gpt"})
    assert gpt.status_code in (400, 404)


# --- clients share ------------------------------------------------------------------------------

FEW_TURNS = 60  # of embedding, until a client that comes beside a flood has its answer


@pytest.fixture
def gated(service, monkeypatch):
    """The features of texts wait until they may be computed; how many texts each call had, and
    each request that waits for its first turn.
    """
    may_go_on, calls, compute = threading.Semaphore(0), [], service.features
    begun, model_of = [], embeddings._embedding_model

    def features(prefixes):
        calls.append(len(prefixes))
        assert may_go_on.acquire(timeout=30)
        return compute(prefixes)

    def begin(service, body):
        begun.append(body.input)
        return model_of(service, body)

    monkeypatch.setattr(service, "features", features)
    monkeypatch.setattr(embeddings, "_embedding_model", begin)
    yield SimpleNamespace(may_go_on=may_go_on, calls=calls, begun=begun)
    may_go_on.release(10_000)


def shared(service, run):
    """Runs something with a function that asks for embeddings as one of several connections."""
    app = make_app(service)

    async def with_connections():
        async with contextlib.AsyncExitStack() as stack:
            connections = {}

            async def ask(port, texts):
                if port not in connections:
                    transport = httpx.ASGITransport(app, client=("127.0.0.1", port))
                    new = httpx.AsyncClient(transport=transport, base_url="http://here", timeout=60)
                    connections[port] = await stack.enter_async_context(new)
                body = {"model": "toy", "input": texts}
                return await connections[port].post("/v1/embeddings", json=body)

            return await run(ask)

    return asyncio.run(asyncio.wait_for(with_connections(), 60))


def test_a_client_that_takes_all_places_keeps_no_other_out_and_has_no_more_itself(service, gated):
    async def run(ask):
        flood = [asyncio.create_task(ask(1, ["jiji"])) for _ in range(MOST_REQUESTS)]
        await until(lambda: len(gated.begun) == MOST_REQUESTS)
        refused, other = await ask(1, ["jiji"]), asyncio.create_task(ask(2, ["jiji"]))
        gated.may_go_on.release(1000)
        answers = [await each for each in (other, *flood)]
        return refused.status_code, {answer.status_code for answer in answers}

    assert shared(service, run) == (429, {200})


def test_many_texts_of_one_client_delay_anothers_by_a_few_batches(service, gated, prompts):
    async def run(ask):
        flood = [asyncio.create_task(ask(1, ["jiji"] * 2048)) for _ in range(4)]
        await until(lambda: gated.calls)
        other = asyncio.create_task(ask(2, prompts[:3]))
        await until(lambda: prompts[:3] in gated.begun)
        # Turns that the flood has ready pass between those of the other: more on a busy machine.
        gated.may_go_on.release(FEW_TURNS)
        answer = await asyncio.wait_for(other, 30)
        num_read = sum(gated.calls)
        for each in flood:
            each.cancel()
        return answer, num_read

    answer, num_read = shared(service, run)
    assert num_read <= (FEW_TURNS + 1) * TEXTS_PER_TURN < 4 * 2048 / 8
    vectors, _ = expected(service, prompts[:3])
    got = [each["embedding"] for each in answer.json()["data"]]
    np.testing.assert_allclose(got, vectors, atol=1e-5)


def test_the_texts_of_a_client_that_hangs_up_are_read_no_further(service, gated):
    texts, leaves = ["jiji"] * 2048, asyncio.Event()

    async def run():
        body = json.dumps({"model": "toy", "input": texts}).encode()
        asking = asyncio.create_task(
            ask_and_leave(make_app(service), body, leaves, "/v1/embeddings")
        )
        await until(lambda: gated.calls)
        leaves.set()
        status = await asyncio.wait_for(asking, 30)
        gated.may_go_on.release(1000)
        await asyncio.sleep(0.3)
        return status

    assert asyncio.run(run()) == 499
    assert sum(gated.calls) <= 2 * TEXTS_PER_TURN


def test_a_bad_text_is_refused_before_any_is_read(service, gated):
    async def run(ask):
        return await asyncio.wait_for(ask(1, ["jiji"] * 100 + [""]), 30)

    error_of(shared(service, run), 400, "input")
    assert not gated.calls
