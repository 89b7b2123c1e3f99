"""Embeddings over HTTP are the features that the router reads, in OpenAI's shape."""

import base64

import numpy as np
import pytest

pytest.importorskip("starlette", reason="HTTP needs the `serve` extra")

from dipaco.runs.routing import features, prefixes_of
from tests.support.serving_rig import error_of


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


def test_the_official_client_embeds(client, prompts):
    openai = pytest.importorskip("openai", reason="the official client is in the `test` extra")
    official = openai.OpenAI(
        api_key="none", base_url="http://testserver/v1", http_client=client, max_retries=0
    )
    answer = official.embeddings.create(model="toy", input=prompts[:2])  # asks for base64
    plain = ask(client, prompts[:2])
    for got, each in zip(answer.data, plain["data"], strict=True):
        np.testing.assert_allclose(got.embedding, each["embedding"], atol=1e-7)
    assert answer.usage.prompt_tokens == plain["usage"]["prompt_tokens"]
