"""A model with more ids than its tokenizer has: an id that is no token is refused, or no text."""

import pytest

from dipaco.data.tokenizer import load_tokenizer
from dipaco.serving.text import TextWriter, token_bytes

NO_TOKEN = 400  # one of the model's 512 ids, and not one of the tokenizer's 300


@pytest.fixture(scope="module")
def client(dipaco, tiny, limits, tmp_path_factory):
    pytest.importorskip("starlette", reason="HTTP needs the `serve` extra")
    from starlette.testclient import TestClient

    from dipaco.serving.http.app import make_app
    from dipaco.serving.service import Service, ServiceSettings

    folder = tmp_path_factory.mktemp("small") / "run"
    settings = [f"data.tokenizer={tiny.folder / 'corpus' / 'tokenizer.json'}", "baselines=()"]
    settings += ["data.vocab_size=512", "model.vocab_size=512", "phases=1"]
    words = [word for setting in settings for word in ("--set", setting)]
    ended = dipaco("train", tiny.config, "--run", folder, *words)
    assert ended.code == 0, ended.err
    with Service(folder, ServiceSettings(limits=limits), say=lambda _: None) as service:
        service.start()
        with TestClient(make_app(service), raise_server_exceptions=False) as client:
            yield client


@pytest.mark.parametrize(
    ("url", "body"),
    [
        ("/v1/completions", {"prompt": [1, NO_TOKEN]}),
        ("/v1/completions", {"prompt": "a", "logit_bias": {str(NO_TOKEN): 1}}),
        ("/v1/completions", {"prompt": "a", "stop_token_ids": [NO_TOKEN]}),
        ("/v1/embeddings", {"input": [1, NO_TOKEN]}),
        ("/detokenize", {"tokens": [NO_TOKEN]}),
    ],
)
def test_an_id_that_is_no_token_is_refused(client, url, body):
    answer = client.post(url, json={"model": "toy", **body})
    assert answer.status_code == 400, answer.text
    problem = answer.json()["error"]["message"]
    assert str(NO_TOKEN) in problem
    assert "not one of 300" in problem


def test_ids_that_are_no_tokens_are_drawn_as_no_text(client):
    """At this temperature two in five are none, and so are alternatives."""
    body = {"model": "toy", "prompt": "a", "temperature": 2, "max_tokens": 40, "seed": 1}
    more = {"logprobs": 5, "echo": True, "ignore_eos": True}
    answer = client.post("/v1/completions", json={**body, **more})
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    tokens = choice["logprobs"]["tokens"]
    assert "" in tokens
    assert "".join(tokens).endswith(choice["text"][-3:]) or "bytes:" in "".join(tokens)
    assert len(choice["logprobs"]["token_logprobs"]) == len(tokens)


def test_ids_may_have_holes(tmp_path):
    from tokenizers import Tokenizer
    from tokenizers.models import BPE

    Tokenizer(BPE(vocab={"a": 0, "b": 5}, merges=[])).save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path / "tokenizer.json")
    assert tokenizer.vocab_size == 6
    assert token_bytes(tokenizer, 8) == (b"a", b"", b"", b"", b"", b"b", b"", b"")


def test_structured_output_draws_tokens_only(client):
    pytest.importorskip("llguidance", reason="structured output needs the `serve` extra")
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["a", "b"]}}}
    body = {"model": "toy", "prompt": "a", "max_tokens": 40, "response_format": schema}
    answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["text"] in ('"a"', '"b"')


def test_a_written_id_that_is_no_token_is_no_text(service):
    from dipaco.serving.decoding.stream import Token

    size = len(service.token_bytes) + 10
    writer = TextWriter(token_bytes(service.tokenizer, size))
    piece = writer.add(Token(size - 1, -1.0, ((size - 2, -0.5),)))
    assert (piece.text, writer.end().text) == ("", "")
