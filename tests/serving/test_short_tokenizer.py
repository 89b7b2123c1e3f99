"""A tokenizer with fewer ids than its model, and with a gap in them: ids that are no token are
refused, and never drawn.
"""

import json

import pytest

pytest.importorskip("starlette", reason="HTTP needs the `serve` extra")

from starlette.testclient import TestClient

from dipaco.data.corpus import Corpus
from dipaco.data.tokenizer import load_tokenizer
from dipaco.runs.opening import open_run
from dipaco.serving.continuation import begin_text
from dipaco.serving.decoding.request_queue import Token
from dipaco.serving.decoding.sampling import SamplingSettings
from dipaco.serving.http.app import make_app
from dipaco.serving.service import Service, ServiceSettings
from dipaco.serving.text import TextWriter
from tests.support.serving_rig import completion, error_of, object_of

FIRST_MISSING = 270  # no id is a token from here to the last
GOOD = {"model": "toy", "prompt": "jiji", "max_tokens": 12, "seed": 1}


@pytest.fixture(scope="module")
def tokenizer(tiny, tmp_path_factory):
    """The tiny run's, with few of its merges; one of them has a larger id than the others."""
    document = json.loads(open_run(tiny.folder).corpus.tokenizer().library.to_str())
    tokens = {token: n for token, n in document["model"]["vocab"].items() if n < FIRST_MISSING}
    merges = [
        each if isinstance(each, list) else each.split() for each in document["model"]["merges"]
    ]
    later = [pair for pair in merges if "".join(pair) not in tokens and {*pair} <= tokens.keys()]
    tokens["".join(later[0])] = 290
    document["model"]["vocab"] = tokens
    document["model"]["merges"] = [pair for pair in merges if "".join(pair) in tokens]
    file = tmp_path_factory.mktemp("short") / "tokenizer.json"
    file.write_text(json.dumps(document))
    return load_tokenizer(file)


@pytest.fixture(scope="module")
def service(tiny, limits, tokenizer):
    settings = ServiceSettings(limits=limits)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Corpus, "tokenizer", lambda _: tokenizer)
        with Service(tiny.folder, settings, say=lambda _: None) as service:
            service.start()
            yield service


@pytest.fixture(scope="module")
def client(service):
    with TestClient(make_app(service), raise_server_exceptions=False) as client:
        yield client


def test_the_size_of_a_vocabulary_holds_its_largest_id(tokenizer):
    assert tokenizer.vocab_size == 291


def test_an_id_that_is_no_token_is_written_as_no_text(service):
    writer = TextWriter(service.token_bytes)
    for missing in (FIRST_MISSING, service.model.vocab_size - 1):
        assert writer.add(Token(missing, 0.0, ())).text == ""
    assert writer.add(Token(290, 0.0, ())).text == service.tokenizer.decode([290])


@pytest.mark.parametrize("missing", [FIRST_MISSING, 299])
@pytest.mark.parametrize(
    ("where", "body", "param"),
    [
        ("/v1/completions", GOOD | {"prompt": [5, ...], "echo": True, "logprobs": 1}, "prompt"),
        ("/v1/completions", GOOD | {"logit_bias": {...: 100}}, "logit_bias"),
        ("/v1/completions", GOOD | {"stop_token_ids": [...]}, "stop_token_ids"),
        ("/v1/route", {"prompt": [5, ...]}, "prompt"),
        ("/detokenize", {"tokens": [5, ...]}, "tokens"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_id_that_is_no_token_is_refused(client, where, body, param, missing):
    """`...` stands for it."""
    here = {
        name: [missing if each is ... else each for each in value]
        if isinstance(value, list)
        else {str(missing): value[...]}
        if isinstance(value, dict)
        else value
        for name, value in body.items()
    }
    assert str(missing) in error_of(client.post(where, json=here), 400, param)


def test_an_id_beyond_a_gap_is_a_token_like_any_other(client, tokenizer):
    body = GOOD | {"prompt": [5], "logit_bias": {"290": 100}, "max_tokens": 2, "logprobs": 5}
    (choice,) = completion(client, body)["choices"]
    assert choice["text"] == tokenizer.decode([290, 290])


def test_ids_that_are_no_token_are_never_drawn(client, service):
    body = GOOD | {"temperature": 2, "n": 8, "max_tokens": 50, "ignore_eos": True, "logprobs": 5}
    choices = completion(client, body)["choices"]
    drawn = [token for each in choices for token in each["logprobs"]["tokens"]]
    assert len(drawn) == 8 * 50
    assert "" not in drawn


@pytest.mark.parametrize("has_end", [True, False])
def test_structured_output_obeys_its_schema(client, service, monkeypatch, has_end):
    pytest.importorskip("llguidance", reason="structured output needs the `serve` extra")
    if not has_end:
        vocabulary = service.grammars.vocabulary._replace(end=None)
        monkeypatch.setattr(service.grammars, "vocabulary", vocabulary)
        monkeypatch.delitem(vars(service.grammars), "_tokenizer", raising=False)
    word = service.tokenizer.decode([290])
    schema = object_of(a={"const": word}) | {"title": str(has_end)}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    (choice,) = completion(client, GOOD | {"max_tokens": 40, "response_format": wanted})["choices"]
    assert json.loads(choice["text"]) == {"a": word}


def test_the_command_line_draws_what_the_server_draws(client, service, tokenizer):
    (ids,) = tokenizer.encode(["jiji"])
    _, tokens = begin_text(
        service.run,
        service.releases.current.release,
        ids,
        ids.tolist(),
        max_tokens=50,
        sampling=SamplingSettings(temperature=2.0),
        seed=1,
        path=0,
        ignore_eos=True,
    )
    body = GOOD | {"max_tokens": 50, "temperature": 2.0, "path": 0, "ignore_eos": True}
    (choice,) = completion(client, body)["choices"]
    drawn = list(tokens)
    assert service.token_ids.issuperset(drawn)
    assert tokenizer.decode(drawn) == choice["text"]
