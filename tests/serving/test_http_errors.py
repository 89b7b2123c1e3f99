"""Bad input of every kind: a 4xx with a sentence in OpenAI's error shape, never a 5xx."""

import asyncio
import dataclasses
import json

import httpx
import pytest

pytest.importorskip("starlette", reason="HTTP needs the `serve` extra")

from starlette.requests import Request
from starlette.testclient import TestClient

from dipaco.serving.errors import BadChatTemplate
from dipaco.serving.http import requests
from dipaco.serving.http.app import HttpSettings, make_app
from dipaco.serving.http.chat_template import ChatTemplate, find_template
from dipaco.serving.http.errors import ApiError
from dipaco.serving.http.protocol import CompletionRequest
from dipaco.serving.service import Service, ServiceSettings
from dipaco.store.errors import ObjectDamaged

GOOD = {"model": "toy", "prompt": "jiji", "max_tokens": 4}
AS_JSON = {"Content-Type": "application/json"}


def refused(answer, status, param=None, code=None):
    """The sentence of a refusal, after checking its shape."""
    assert answer.status_code == status, answer.text
    (name,) = answer.json()
    problem = answer.json()["error"]
    assert name == "error"
    assert set(problem) == {"message", "type", "param", "code"}
    assert problem["message"].rstrip()[-1] in ".?`)"
    if param is not None:
        assert problem["param"] == param
    if code is not None:
        assert problem["code"] == code
    return problem["message"]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": 2.5}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"min_p": -0.1}, "min_p"),
        ({"top_k": -1}, "top_k"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": 10**30}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"prompt": ["a"] * 129}, "prompt"),
        ({"n": 100, "prompt": ["a", "b"]}, "n"),
        ({"best_of": 3}, "best_of"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"seed": 2**64}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"stop": [1]}, "stop[0]"),
        ({"suffix": "and so on"}, "suffix"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"frequency_penalty": -0.5}, "frequency_penalty"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x"),
        ({"tools": []}, "tools"),
        ({"path": 4}, "path"),
        ({"path": -1}, "path"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ["a", [1]]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [5, 300]}, "prompt"),
        ({"prompt": [-1]}, "prompt[0]"),
        ({"prompt": {"text": "a"}}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": "a" * 10_000}, "prompt"),
        ({"prompt": "ab " * 60}, "prompt"),
        ({"prompt": [3] * 64}, "prompt"),
    ],
    ids=str,
)
def test_a_wrong_value_is_refused_by_the_name_of_its_field(client, change, param):
    refused(client.post("/v1/completions", json=GOOD | change), 400, param)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"\xff\xfe\x00",
        b'{"model": "toy", "prompt": "\xff"}',
        b'{"model": "toy", "prompt": "\\ud800 a"}',
        b'{"model": "toy", "prompt": "a", "temperature": NaN}',
        b'{"model": "toy", "prompt": "a", "temperature": Infinity}',
        b'{"model": "toy", "prompt": "a", "temperature": 1e999}',
        b'{"model": "toy", "prompt": ' + b"[" * 100_000,
        b'{"model": "toy", "prompt": "a"} and more',
    ],
    ids=lambda body: body[:40],
)
@pytest.mark.parametrize("where", ["/v1/completions", "/v1/chat/completions", "/v1/route"])
def test_what_is_not_such_a_request_is_refused(client, where, body):
    refused(client.post(where, content=body, headers=AS_JSON), 400)


def test_missing_and_unknown_fields_are_named(client):
    told = client.post("/v1/completions", json={"model": "toy"})
    assert refused(told, 400, "prompt") == "You must provide a `prompt` parameter."
    told = client.post("/v1/completions", json=GOOD | {"max_token": 3})
    assert "Unrecognized request argument supplied: max_token" in refused(told, 400, "max_token")


def test_an_unknown_model_is_not_found(client):
    told = client.post("/v1/completions", json=GOOD | {"model": "gpt-4"})
    assert "This server has `toy`" in refused(told, 404, "model", "model_not_found")
    refused(client.get("/v1/models/gpt-4"), 404, "model", "model_not_found")


def test_a_prompt_that_fills_the_context_is_told_how_long_it_is(client):
    told = client.post("/v1/completions", json=GOOD | {"prompt": [3] * 64})
    message = refused(told, 400, "prompt", "context_length_exceeded")
    assert "64 tokens, and the context holds 64" in message


def test_a_megabyte_is_refused_without_being_read_as_tokens(client, service, monkeypatch):
    monkeypatch.setattr(type(service.tokenizer), "encode", lambda *_: pytest.fail("was encoded"))
    for where in ("/v1/completions", "/v1/route"):
        body = {"prompt": "jiji " * 200_000} | ({"model": "toy"} if "route" not in where else {})
        refused(client.post(where, json=body), 400, "prompt", "context_length_exceeded")


def test_a_body_that_is_too_large_or_not_json_is_refused(service):
    app = make_app(service, settings=HttpSettings(max_body_bytes=1000))
    with TestClient(app) as client:
        told = client.post("/v1/completions", json=GOOD | {"prompt": "a" * 2000})
        assert "larger than 1,000 bytes" in refused(told, 413)
        told = client.post("/v1/completions", content=json.dumps(GOOD))
        assert "Content-Type: application/json" in refused(told, 415)
        told = client.post("/v1/completions", data={"model": "toy"})
        refused(told, 415)


def test_what_is_not_there_is_said_in_the_same_shape(client):
    assert "nothing at /v2/x" in refused(client.get("/v2/x"), 404)
    told = client.get("/v1/completions")
    refused(told, 405)
    assert told.headers["allow"] == "POST"


def test_a_strange_text_is_a_prompt_like_any_other(client):
    for prompt in ("\x00\x01", "<|endoftext|>", "שלום", "😀", "{{7*7}}", "\u2028", "a\r\nb"):
        told = client.post("/v1/completions", json=GOOD | {"prompt": prompt, "echo": True})
        assert told.status_code == 200, told.text
        assert told.json()["choices"][0]["text"].startswith(prompt)


# --- keys ------------------------------------------------------------------------------------


def test_with_keys_a_request_must_send_one_of_them(service):
    app = make_app(service, settings=HttpSettings(api_keys=("s3cret", "öther")))
    with TestClient(app) as client:
        assert "API key" in refused(client.get("/v1/models"), 401, code="invalid_api_key")
        for wrong in ("Bearer wrong", "Bearer s3cre", "s3cret", "Basic s3cret", "Bearer ", "B"):
            told = client.post("/v1/completions", json=GOOD, headers={"Authorization": wrong})
            refused(told, 401, code="invalid_api_key")
            assert told.headers["www-authenticate"] == "Bearer"
        for right in ("s3cret", "öther"):
            key = f"Bearer {right}".encode()
            told = client.get("/v1/models", headers={"Authorization": key})
            assert told.status_code == 200
        for is_open in ("/healthz", "/readyz", "/metrics", "/openapi.json", "/"):
            assert client.get(is_open).status_code == 200
        assert client.get("/openapi.json").json()["security"] == [{"key": []}]


# --- too many, and hanging up: the loop stands still and is turned by hand ------------------------


@pytest.fixture
def standing(tiny, limits):
    """A service whose loop nobody turns, with room for two that wait."""
    settings = ServiceSettings(limits=dataclasses.replace(limits, waiting=2))
    with Service(tiny.folder, settings, say=lambda _: None) as service:
        yield service


def in_process(service):
    transport = httpx.ASGITransport(make_app(service))
    return httpx.AsyncClient(transport=transport, base_url="http://here")


async def until(is_so):
    for _ in range(2000):
        if is_so():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it never came to that")


def test_who_comes_when_the_queue_is_full_is_told_when_to_come_again(standing):
    async def many():
        async with in_process(standing) as client:
            most = standing.loop.capacity  # rows that are free, and two more
            first = [
                asyncio.create_task(client.post("/v1/completions", json=GOOD)) for _ in range(most)
            ]
            await until(lambda: standing.loop.stats().num_waiting == most)
            late = await client.post("/v1/completions", json=GOOD)
            message = refused(late, 429, code="queue_full")
            assert "Try again" in message
            assert int(late.headers["retry-after"]) >= 1
            never = await client.post("/v1/completions", json=GOOD | {"n": most + 1})
            assert f"more than the {most}" in refused(never, 400, "n")
            turning = asyncio.get_running_loop().run_in_executor
            while not all(task.done() for task in first):
                await turning(None, standing.loop.run_once)
            assert [task.result().status_code for task in first] == [200] * most

    asyncio.run(many())
    assert standing.cache.stats().pinned == 0


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_client_that_hangs_up_frees_its_place_and_its_path(standing, is_streamed):
    app = make_app(standing)
    body = json.dumps(GOOD | {"stream": is_streamed, "n": 2}).encode()

    async def call():
        has_left = asyncio.Event()
        told = [{"type": "http.request", "body": body}]

        async def receive():
            if told:
                return told.pop()
            await has_left.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            pass

        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/completions",
            "headers": [(b"content-type", b"application/json")],
            "query_string": b"",
            "asgi": {"spec_version": "2.3"},
        }
        answering = asyncio.create_task(app(scope, receive, send))
        await until(lambda: standing.loop.stats().num_waiting == 2)
        assert standing.cache.stats().pinned == 1
        has_left.set()
        await answering
        await until(lambda: standing.cache.stats().pinned == 0)

    asyncio.run(call())
    while standing.loop.run_once():
        pass
    assert standing.loop.stats().num_tokens == 0, "nobody waited for them"


# --- paths that are not whole -------------------------------------------------------------------


def test_paths_that_are_not_whole_answer_503_and_the_others_serve(tiny, copy_of, limits):
    run = copy_of(tiny)
    said = []
    with Service(run.folder, ServiceSettings(limits=limits), said.append) as service:
        release = service.releases.current.release
        broken = run.folder / release.objects[release.paths[3]["late/0001"]].name
        content = bytearray(broken.read_bytes())
        content[-5] ^= 1
        broken.write_bytes(content)
        service.follower.verify_current()
        assert "late/0001 is not whole, so paths 1, 3 answer 503" in said[0]
        service.start()
        with TestClient(make_app(service)) as client:
            for path in (1, 3):
                for body in (GOOD, GOOD | {"stream": True}):
                    told = client.post("/v1/completions", json=body | {"path": path})
                    message = refused(told, 503, "path", "path_not_whole")
                    assert broken.name in message
            for path in (0, 2):
                told = client.post("/v1/completions", json=GOOD | {"path": path})
                assert told.status_code == 200
            ready = client.get("/readyz").json()
            assert set(ready["detail"]["paths_not_whole"]) == {"1", "3"}


def test_a_module_that_vanishes_is_said_to_the_client_and_once_to_the_operator(
    tiny, copy_of, limits, monkeypatch
):
    monkeypatch.setattr("dipaco.serving.releases.RETRY_SECONDS", 0.0)
    run = copy_of(tiny)
    said = []
    with Service(run.folder, ServiceSettings(limits=limits), said.append) as service:
        service.start()
        release = service.releases.current.release
        file = run.folder / release.objects[release.paths[3]["late/0001"]].name
        content = file.read_bytes()
        file.unlink()
        with TestClient(make_app(service)) as client:
            for _ in range(2):
                told = client.post("/v1/completions", json=GOOD | {"path": 3})
                assert file.name in refused(told, 503, "path", "path_not_whole")
            of_module = [sentence for sentence in said if "late/0001" in sentence]
            assert len(of_module) == 1
            assert "not whole, so paths 1, 3 answer 503" in of_module[0]
            file.write_bytes(content)
            told = client.post("/v1/completions", json=GOOD | {"path": 3})
            assert told.status_code == 200
            assert said[-1] == "module late/0001 of paths 1, 3 is whole again"


def test_a_run_of_which_no_path_is_whole_is_not_served(tiny, copy_of):
    run = copy_of(tiny)
    with Service(run.folder, say=lambda _: None) as service:
        for receipt in service.releases.current.release.objects.values():
            (run.folder / receipt.name).write_bytes(b"not this")
        with pytest.raises(ObjectDamaged):
            service.start()


# --- chat ----------------------------------------------------------------------------------------

TEMPLATE = """\
{%- for message in messages -%}
{%- if message.role == 'assistant' and loop.first -%}
{{ raise_exception('a conversation begins with the user') }}
{%- endif -%}
{{ message.role }}: {{ message.content }}
{% endfor %}assistant:"""


@pytest.fixture
def talking(service, tmp_path):
    """A client of a server that has a template."""
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    chat = ChatTemplate(tmp_path / "chat_template.jinja", service.tokenizer.file)
    with TestClient(make_app(service, settings=HttpSettings(chat=chat))) as client:
        yield client


TALK = {"model": "toy", "messages": [{"role": "user", "content": "jiji"}], "temperature": 0}


def test_a_chat_is_a_completion_of_the_rendered_template(talking):
    text = "user: jiji\nassistant:"
    asked = GOOD | {"prompt": text, "max_tokens": 8, "temperature": 0}
    expected = talking.post("/v1/completions", json=asked).json()["choices"][0]["text"]
    told = talking.post("/v1/chat/completions", json=TALK | {"max_tokens": 8}).json()
    assert told["object"] == "chat.completion"
    assert told["choices"][0]["message"] == {"role": "assistant", "content": expected}
    parts = {"messages": [{"role": "user", "content": [{"type": "text", "text": "jiji"}]}]}
    same = talking.post("/v1/chat/completions", json=TALK | parts | {"max_completion_tokens": 8})
    assert same.json()["choices"] == told["choices"]
    streamed = talking.post("/v1/chat/completions", json=TALK | {"max_tokens": 8, "stream": True})
    *events, end = [line[6:] for line in streamed.text.split("\n\n") if line]
    assert end == "[DONE]"
    deltas = [json.loads(event)["choices"][0]["delta"] for event in events]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(delta.get("content", "") for delta in deltas) == expected


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "assistant", "content": "a"}]}, "messages"),
        ({"messages": [{"role": "user", "content": "a " * 100}]}, "prompt"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"functions": []}, "functions"),
    ],
    ids=str,
)
def test_a_wrong_conversation_is_refused(talking, change, param):
    refused(talking.post("/v1/chat/completions", json=TALK | change), 400, param)


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{{ '\\ud800' }}", "surrogates"),
        ("{{ messages[7].content }}", "no element 7"),
    ],
)
def test_a_template_that_fails_is_a_sentence(service, tmp_path, template, problem):
    (tmp_path / "odd.jinja").write_text(template)
    chat = ChatTemplate(tmp_path / "odd.jinja", service.tokenizer.file)
    with TestClient(make_app(service, settings=HttpSettings(chat=chat))) as client:
        told = client.post("/v1/chat/completions", json=TALK)
        assert problem in refused(told, 400, "messages")


def test_a_long_conversation_is_refused_before_it_is_made_into_tokens(talking, monkeypatch):
    monkeypatch.setattr(ChatTemplate, "encode", lambda *_: 1 / 0)
    long = {"messages": [{"role": "user", "content": "z " * 100_000}]}
    told = talking.post("/v1/chat/completions", json=TALK | long)
    assert "at least" in refused(told, 400, "prompt")


def test_a_file_that_is_no_template_is_refused_at_the_start(service, tmp_path):
    (tmp_path / "broken.jinja").write_text("{% for message in %}")
    (tmp_path / "tokenizer_config.json").write_text("{}")
    for name in ("none.jinja", "broken.jinja", "tokenizer_config.json"):
        with pytest.raises(BadChatTemplate, match=name):
            ChatTemplate(tmp_path / name, service.tokenizer.file)
    assert find_template(tmp_path / "tokenizer.json") is None
    (tmp_path / "fine.jinja").write_text("a")
    for content in (
        "[1]",
        "null",
        '{"eos_token": 5}',
        '{"bos_token": {"content": 3}}',
        "[" * 100_000,
    ):
        (tmp_path / "tokenizer_config.json").write_text(content)
        with pytest.raises(BadChatTemplate, match=r"tokenizer_config\.json"):
            ChatTemplate(tmp_path / "fine.jinja", service.tokenizer.file)
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "a"}')
    assert find_template(tmp_path / "tokenizer.json").name == "tokenizer_config.json"


def test_without_a_template_there_is_no_chat(client):
    told = client.post("/v1/chat/completions", json=TALK)
    assert "no chat template" in refused(told, 400, code="no_chat_template")


def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(requests, "BODY_SECONDS", 0.05)

    async def nothing():
        await asyncio.sleep(60)

    headers = [(b"content-type", b"application/json")]
    slow = Request({"type": "http", "headers": headers}, nothing)
    with pytest.raises(ApiError, match="incomplete after") as refusal:
        asyncio.run(requests.read_body(slow, 1000, CompletionRequest))
    assert refusal.value.status == 408
