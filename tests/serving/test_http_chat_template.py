"""Chat: messages are rendered by the tokenizer's template, and its faults are error messages."""

import json

import pytest

pytest.importorskip("starlette", reason="HTTP needs the `serve` extra")

from starlette.testclient import TestClient

from dipaco.serving.errors import BadChatTemplate
from dipaco.serving.http.app import HttpSettings, make_app
from dipaco.serving.http.chat_template import ChatTemplate, find_template
from tests.support.serving_rig import error_of

TEMPLATE = """\
{%- for message in messages -%}
{%- if message.role == 'assistant' and loop.first -%}
{{ raise_exception('a conversation begins with the user') }}
{%- endif -%}
{{ message.role }}: {{ message.content }}
{% endfor %}assistant:"""


@pytest.fixture
def chat_client(service, tmp_path):
    """A client of a server with a chat template."""
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    chat = ChatTemplate(tmp_path / "chat_template.jinja", service.tokenizer.file)
    with TestClient(make_app(service, settings=HttpSettings(chat=chat))) as client:
        yield client


REQUEST = {"model": "toy", "messages": [{"role": "user", "content": "jiji"}], "temperature": 0}


def test_a_chat_is_a_completion_of_the_rendered_template(chat_client):
    text = "user: jiji\nassistant:"
    completion = {"model": "toy", "prompt": text, "max_tokens": 8, "temperature": 0}
    expected = chat_client.post("/v1/completions", json=completion).json()["choices"][0]["text"]
    response = chat_client.post("/v1/chat/completions", json=REQUEST | {"max_tokens": 8}).json()
    assert response["object"] == "chat.completion"
    assert response["choices"][0]["message"] == {"role": "assistant", "content": expected}
    parts = {"messages": [{"role": "user", "content": [{"type": "text", "text": "jiji"}]}]}
    same = chat_client.post(
        "/v1/chat/completions", json=REQUEST | parts | {"max_completion_tokens": 8}
    )
    assert same.json()["choices"] == response["choices"]
    streamed = chat_client.post(
        "/v1/chat/completions", json=REQUEST | {"max_tokens": 8, "stream": True}
    )
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
def test_a_wrong_conversation_is_refused(chat_client, change, param):
    error_of(chat_client.post("/v1/chat/completions", json=REQUEST | change), 400, param)


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{{ '\\ud800' }}", "surrogates"),
        ("{{ messages[7].content }}", "no element 7"),
    ],
)
def test_a_template_that_fails_gives_an_error_message(service, tmp_path, template, problem):
    (tmp_path / "odd.jinja").write_text(template)
    chat = ChatTemplate(tmp_path / "odd.jinja", service.tokenizer.file)
    with TestClient(make_app(service, settings=HttpSettings(chat=chat))) as client:
        response = client.post("/v1/chat/completions", json=REQUEST)
        assert problem in error_of(response, 400, "messages")


def test_a_long_conversation_is_refused_without_being_tokenized(chat_client, monkeypatch):
    monkeypatch.setattr(ChatTemplate, "encode", lambda *_: 1 / 0)
    long = {"messages": [{"role": "user", "content": "z " * 100_000}]}
    response = chat_client.post("/v1/chat/completions", json=REQUEST | long)
    assert "at least" in error_of(response, 400, "prompt")


def test_a_file_that_is_not_a_template_is_refused_at_the_start(service, tmp_path):
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


def test_without_a_template_chat_is_refused(client):
    response = client.post("/v1/chat/completions", json=REQUEST)
    assert "no chat template" in error_of(response, 400, code="no_chat_template")
