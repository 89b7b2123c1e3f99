"""Chat: messages are rendered by the tokenizer's template, and its faults are error messages."""

import datetime
import itertools
import json
import shutil

import pytest

pytest.importorskip("starlette", reason="HTTP needs the `serve` extra")

from dipaco.data.config import EdgeNames
from dipaco.serving.errors import BadChatTemplate
from dipaco.serving.http import chat_template
from dipaco.serving.http.chat_template import ChatTemplate, find_template, routed_text
from tests.support.serving_rig import error_of, events_of

TEMPLATE = """\
{%- for message in messages -%}
{%- if message.role == 'assistant' and loop.first -%}
{{ raise_exception('a conversation begins with the user') }}
{%- endif -%}
{{ message.role }}: {{ message.content }}
{% endfor %}assistant:"""


@pytest.fixture(scope="module")
def chat_client(chatting):
    with chatting(TEMPLATE) as client:
        yield client


REQUEST = {"model": "toy", "messages": [{"role": "user", "content": "jiji"}], "temperature": 0}


def test_a_chat_is_a_completion_of_the_rendered_template(chat_client):
    text = "user: jiji\nassistant:"
    path = chat_client.post("/v1/route", json={"prompt": "jiji"}).json()["path"]
    completion = {"model": "toy", "prompt": text, "max_tokens": 8, "temperature": 0, "path": path}
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
    deltas = [event["choices"][0]["delta"] for event in events_of(streamed)]
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
        ({"functions": [{}]}, "functions"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "grammar"}}, "response_format.type"),
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
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "0.2 s"),
        (
            "{% macro f(n) %}{% if n %}{{ f(n-1) ~ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
            "0.2 s",
        ),
        ("{% set n = messages | length + 8 %}{{ n ** n ** n ** n }}", "larger than"),
        ("{{ messages[0].content * 9999 * 9999 }}", "larger than"),
        ("{{ raise_exception('two\\nlines.') }}", "these messages: two lines."),
    ],
)
def test_a_template_that_fails_gives_an_error_message(chatting, monkeypatch, template, problem):
    monkeypatch.setattr(chat_template, "MOST_SECONDS", 0.2)
    with chatting(template) as client:
        response = client.post("/v1/chat/completions", json=REQUEST)
        assert problem in error_of(response, 400, "messages")


MARKED = """\
{%- for message in messages -%}
<{{ message.role[0] }}>{{ message.content }}</>
{%- endfor %}<a>"""  # as ChatML, with shorter markers: the context is 64 tokens


@pytest.mark.parametrize("template", [TEMPLATE, MARKED], ids=["plain", "marked"])
@pytest.mark.parametrize("system", [None, "ji"], ids=["alone", "system"])
def test_a_chat_goes_where_the_users_text_alone_goes_and_stays_there(
    chatting, prompts, template, system
):
    before = [] if system is None else [{"role": "system", "content": system}]
    paths = set()
    with chatting(template) as client:
        for text, other in itertools.pairwise(text[:8] for text in prompts[:6]):
            alone = client.post("/v1/route", json={"prompt": text}).json()["path"]
            first = [{"role": "user", "content": [{"type": "text", "text": text}]}]
            later = [{"role": "assistant", "content": "j"}, {"role": "user", "content": other}]
            for messages in (first, first + later):
                body = REQUEST | {"messages": before + messages, "max_tokens": 1}
                answer = client.post("/v1/chat/completions", json=body)
                assert answer.status_code == 200, answer.text
                assert answer.json()["choices"][0]["path"] == alone
            paths.add(alone)
    assert len(paths) > 1, "the prompts should need several paths"


def test_what_routes_a_conversation():
    def text(*turns, is_latest=False):
        return routed_text(turns, is_latest=is_latest)

    turns = ("system", "s"), ("user", " "), ("user", "one"), ("assistant", "a"), ("user", "two")
    assert text(*turns) == "one"
    assert text(*turns, is_latest=True) == "two"
    assert text(("system", "s"), ("assistant", "a")) is None
    assert text(("user", "")) is None


def test_templates_may_use_what_transformers_gives_them(service, tmp_path):
    template = """\
{%- for message in messages -%}
{%- if message.role == 'system' -%}{%- continue -%}{%- endif -%}
{%- generation -%}{{ message.content }}{%- endgeneration -%}
{%- if loop.index == 3 -%}{%- break -%}{%- endif -%}
{%- endfor -%}
|{{ strftime_now('%Y') }}|{{ {'b': 'é', 'a': 1} | tojson(sort_keys=true) }}"""
    (tmp_path / "rich.jinja").write_text(template)
    chat = ChatTemplate(tmp_path / "rich.jinja", service.tokenizer.file)
    messages = [{"role": role, "content": role[0]} for role in ("system", "user", "bot", "user")]
    year = datetime.datetime.now().year
    assert chat.render(messages) == f'ub|{year}|{{"a": 1, "b": "é"}}'


LIKE_TRANSFORMERS = [
    "{% if tools is not none %}{{ tools|tojson }}{% endif %}x",
    "{% if documents is none and tools is none %}none{% endif %}{{ tools }}{{ documents }}",
    "{{ bos_token }}{{ eos_token }}{{ pad_token }}{{ unk_token }}",
    "{{ sep_token is defined }}{{ cls_token is defined }}{{ pad_token is defined }}",
    "{{ image_token }}{{ audio_token }}{{ odd_token is defined }}",
]


@pytest.mark.parametrize("template", LIKE_TRANSFORMERS)
@pytest.mark.parametrize("form", ["file", "settings", "named", "null", "empty"])
def test_a_template_is_rendered_as_by_transformers(service, tmp_path, template, form):
    transformers = pytest.importorskip("transformers", reason="needs the `parity` extra")
    shutil.copy(service.tokenizer.file, tmp_path / "tokenizer.json")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "ab", "pad_token": "é"}
    settings["eos_token"] = {"__type": "AddedToken", "content": "ba"}
    settings |= {"image_token": "ab", "extra_special_tokens": {"audio_token": "é"}, "odd_token": 5}
    if form in ("null", "empty"):  # there is none, whatever the texts were trained to begin with
        settings["bos_token"] = None if form == "null" else ""
    if form in ("file", "null", "empty"):
        (tmp_path / "chat_template.jinja").write_text(template)
    elif form == "settings":
        settings["chat_template"] = template
    else:
        tools = {"name": "tool_use", "template": "tools"}
        settings["chat_template"] = [tools, {"name": "default", "template": template}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings, ensure_ascii=False))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = ChatTemplate(
        find_template(tmp_path / "tokenizer.json"),
        tmp_path / "tokenizer.json",
        EdgeNames("a", "b"),
    )
    messages = REQUEST["messages"]
    assert ours.render(messages) == theirs.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )


def test_a_long_conversation_is_refused_without_being_tokenized(chat_client, monkeypatch):
    monkeypatch.setattr(ChatTemplate, "encode", lambda *_: 1 / 0)
    long = {"messages": [{"role": "user", "content": "z " * 100_000}]}
    response = chat_client.post("/v1/chat/completions", json=REQUEST | long)
    assert "at least" in error_of(response, 400, "prompt")


def test_a_file_that_is_not_a_template_is_refused_at_the_start(service, tmp_path):
    (tmp_path / "broken.jinja").write_text("{% for message in %}")
    (tmp_path / "tokenizer_config.json").write_text("{}")
    deep = "{% for a in [1] %}" * 25 + "{% endfor %}" * 25  # more than Python's own blocks
    (tmp_path / "deep.jinja").write_text(deep)
    for name in ("none.jinja", "broken.jinja", "tokenizer_config.json", "deep.jinja"):
        with pytest.raises(BadChatTemplate, match=name) as error:
            ChatTemplate(tmp_path / name, service.tokenizer.file)
        assert str(error.value).count("..") == 0
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


@pytest.fixture(scope="module")
def marking_client(chatting):
    """Its template marks where the answer begins only where it is asked to, as most do."""
    turns = "{% for m in messages %}{{ m.role[0] }}{{ m.content }}/{% endfor %}"
    with chatting(turns + "{% if add_generation_prompt %}a:{% endif %}") as client:
        yield client


TURNS = {"messages": REQUEST["messages"]}


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({}, "ujiji/a:"),
        ({"add_generation_prompt": True, "return_token_strs": None}, "ujiji/a:"),
        ({"add_generation_prompt": None, "add_special_tokens": True}, "ujiji/a:"),
        ({"add_generation_prompt": False, "model": "toy"}, "ujiji/"),
        ({"prompt": None, "continue_final_message": False, "tools": []}, "ujiji/a:"),
    ],
    ids=str,
)
def test_a_conversation_is_tokenized_as_the_template_writes_it(service, marking_client, more, text):
    answer = marking_client.post("/tokenize", json=TURNS | more)
    assert answer.status_code == 200, answer.text
    (ids,) = service.tokenizer.encode([text])
    assert answer.json()["tokens"] == ids.tolist()


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": None, "messages": None}, "prompt"),
        (TURNS | {"prompt": "jiji"}, "messages"),
        (TURNS | {"continue_final_message": True}, "continue_final_message"),
        (TURNS | {"tools": [{"type": "function"}]}, "tools"),
        (TURNS | {"chat_template": "{{ 1 }}"}, "chat_template"),
        ({"prompt": "jiji", "add_generation_prompt": True}, "add_generation_prompt"),
        ({"prompt": "jiji", "continue_final_message": True}, "continue_final_message"),
    ],
    ids=str,
)
def test_what_cannot_be_tokenized_is_refused(chat_client, body, param):
    error_of(chat_client.post("/tokenize", json=body), 400, param)


def test_without_a_template_the_messages_are_one_text_that_goes_on(client):
    """As a model that was trained on texts knows no roles."""
    turns = [{"role": role, "content": role[:2]} for role in ("system", "user")]
    body = {"model": "toy", "temperature": 0, "max_tokens": 8}
    chat = client.post("/v1/chat/completions", json=body | {"messages": turns}).json()
    text = client.post("/v1/completions", json=body | {"prompt": "sy\nus"}).json()
    assert chat["usage"]["prompt_tokens"] == text["usage"]["prompt_tokens"]
    on_path = {"path": chat["choices"][0]["path"]}
    text = client.post("/v1/completions", json=body | on_path | {"prompt": "sy\nus"}).json()
    assert chat["choices"][0]["message"]["content"] == text["choices"][0]["text"]
    as_ids = client.post("/tokenize", json={"messages": turns}).json()["tokens"]
    assert as_ids == client.post("/tokenize", json={"prompt": "sy\nus"}).json()["tokens"]
