"""Bad input of every kind: a 4xx with a sentence in OpenAI's error format, never a 5xx."""

import asyncio
import contextlib
import dataclasses
import gzip
import itertools
import json
import re

import pytest

pytest.importorskip("starlette", reason="HTTP needs the `serve` extra")

from starlette.requests import Request
from starlette.testclient import TestClient

import dipaco
from dipaco.serving.decoding.device_health import DeviceHealth
from dipaco.serving.http import requests
from dipaco.serving.http.app import HttpSettings, make_app
from dipaco.serving.http.errors import ApiError, api_error_of
from dipaco.serving.http.protocol import CompletionRequest
from dipaco.serving.http.server import http_config
from dipaco.serving.path_admission import PathAdmission
from dipaco.serving.service import Service, ServiceSettings
from dipaco.store.errors import BucketMissing, ObjectDamaged, StoreRefuses, StoreUnreachable
from tests.support.serving_rig import (
    ask_and_leave,
    asked_by,
    completion,
    error_of,
    in_process,
    until,
)

GOOD = {"model": "toy", "prompt": "jiji", "max_tokens": 4}
CHAT = {"model": "toy", "messages": [{"role": "user", "content": "jiji"}], "max_tokens": 4}
RESPONSE = {"model": "toy", "input": "ji", "max_output_tokens": 2}
AS_JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": 2.5}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"min_p": -0.1}, "min_p"),
        ({"top_k": -2}, "top_k"),
        ({"repetition_penalty": 1e-40}, "repetition_penalty"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"prompt": ["a"] * 129}, "prompt"),
        ({"n": 0}, "n"),
        ({"n": 100, "prompt": ["a", "b"]}, "n"),
        ({"best_of": 3}, "best_of"),
        ({"min_tokens": 5}, "min_tokens"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": "3"}, "min_tokens"),
        ({"min_tokens": 1.5}, "min_tokens"),
        ({"logprobs": 21}, "logprobs"),
        ({"seed": 2**64}, "seed"),
        ({"max_tokens": 4.5}, "max_tokens"),
        ({"max_tokens": 1e300}, "max_tokens"),
        ({"max_tokens": "4"}, "max_tokens"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": [1]}, "stop[0]"),
        ({"suffix": "and so on"}, "suffix"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"frequency_penalty": -2.5}, "frequency_penalty"),
        ({"logit_bias": {"5": 101}}, "logit_bias[...]"),
        ({"logit_bias": {"300": 1}}, "logit_bias"),
        ({"logit_bias": {"²": 1}}, "logit_bias"),
        ({"logit_bias": {str(i): 1 for i in range(301)}}, "logit_bias"),
        ({"stop_token_ids": [300]}, "stop_token_ids"),
        ({"stop_token_ids": [1] * 17}, "stop_token_ids"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x"),
        ({"tools": []}, "tools"),
        ({"metadata": {"a": 1}}, "metadata[...]"),
        ({"stop_word": None}, "stop_word"),
        ({"path": 4}, "path"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [5, 300]}, "prompt"),
        ({"prompt": [-1]}, "prompt[0]"),
        ({"prompt": None}, "prompt"),
        ({"prompt": "a" * 10_000}, "prompt"),
    ],
    ids=str,
)
def test_a_wrong_value_is_refused_by_the_name_of_its_field(client, change, param):
    error_of(client.post("/v1/completions", json=GOOD | change), 400, param)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe\x00",
        b'{"model": "toy", "prompt": "\xff"}',
        b'{"model": "toy", "prompt": "\\ud800 a"}',
        b'{"model": "toy", "prompt": "a", "temperature": NaN}',
        b'{"model": "toy", "prompt": "a", "temperature": 1e999}',
        b'{"model": "toy", "prompt": ' + b"[" * 100_000,
        b'{"model": "toy", "prompt": "a"} and more',
    ],
    ids=lambda body: body[:40],
)
@pytest.mark.parametrize("where", ["/v1/completions", "/v1/chat/completions", "/v1/route"])
def test_a_body_that_is_not_a_request_is_refused(client, where, body):
    error_of(client.post(where, content=body, headers=AS_JSON), 400)


ASK_FOR_NOTHING = {
    "completions": (
        {"max_tokens": 4.0, "seed": 7.0, "n": 1e0},
        {"suffix": ""},
        {"stop": ""},
        {"stop": ["", ""]},
        {"stream_options": {"include_usage": False}},
        {"prompt_cache_retention": "in-memory"},
    ),
    "chat/completions": (
        {"tools": [{"type": "function"}], "tool_choice": "none"},
        {"functions": [{"name": "f"}], "function_call": "none"},
        {"tools": [], "functions": []},
        {"top_logprobs": 0, "logprobs": False},
        {"reasoning_effort": "none", "verbosity": "medium", "stop": ""},
    ),
    "responses": (
        {"reasoning": {}, "include": [], "tools": [], "max_tool_calls": None},
        {"reasoning": {"effort": None, "summary": None}, "text": {}},
        {"reasoning": {"effort": "none"}, "prompt": None, "context_management": None},
        {"background": False, "store": False, "truncation": "disabled", "instructions": ""},
    ),
}


@pytest.mark.parametrize("where", ASK_FOR_NOTHING)
def test_a_value_that_asks_for_nothing_is_accepted(client, where):
    body = {"completions": GOOD, "chat/completions": CHAT, "responses": RESPONSE}[where]

    def answered(change):
        answer = client.post(f"/v1/{where}", json=body | {"temperature": 0} | change)
        assert answer.status_code == 200, (change, answer.text)
        found = answer.json()
        return found["choices"] if "choices" in found else found["output"][0]["content"]

    plain = answered({})
    for change in ASK_FOR_NOTHING[where]:
        assert answered(change) == plain, change


def test_an_effort_that_no_model_here_makes_is_refused(client):
    wrong = RESPONSE | {"reasoning": {"effort": "high"}}
    error_of(client.post("/v1/responses", json=wrong), 400, "reasoning.effort")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"service_tier": "x"},
            "`service_tier`: Invalid enum value 'x'; expected is 'auto' or 'default'.",
        ),
        (
            {"messages": [{"role": "me", "content": "jiji"}]},
            "'me'; expected is 'assistant' or 'developer' or 'system' or 'user'.",
        ),
        ({"temperature": "hot"}, "Expected `float | null`, got `str`."),
    ],
    ids=str,
)
def test_an_answer_to_a_wrong_value_says_which_are_right(client, change, said):
    response = client.post("/v1/chat/completions", json=CHAT | change)
    assert error_of(response, 400).endswith(said)


def test_a_body_may_be_compressed_and_may_begin_with_a_byte_order_mark(service, client):
    content = b"\xef\xbb\xbf" + json.dumps(GOOD).encode()
    assert client.post("/v1/completions", content=content, headers=AS_JSON).status_code == 200
    for wide in ("utf-16", "utf-16-le", "utf-32"):
        answer = client.post(
            "/v1/completions", content=json.dumps(GOOD).encode(wide), headers=AS_JSON
        )
        assert "Encode it as UTF-8" in error_of(answer, 400)
    zipped, by_gzip = gzip.compress(content), AS_JSON | {"Content-Encoding": "GZip"}
    for whole in (zipped, zipped + gzip.compress(b"  ")):
        assert client.post("/v1/completions", content=whole, headers=by_gzip).status_code == 200
    for broken in (zipped[:-9], content, b"", zipped + b"and more"):
        error_of(client.post("/v1/completions", content=broken, headers=by_gzip), 400)
    by_br = AS_JSON | {"Content-Encoding": "br"}
    other = client.post("/v1/completions", content=zipped, headers=by_br)
    assert "compressed as `br`" in error_of(other, 415)
    bomb = gzip.compress(b" " * 1_000_000 + content)
    assert len(bomb) < 2000
    with TestClient(make_app(service, settings=HttpSettings(max_body_bytes=2000))) as small:
        error_of(small.post("/v1/completions", content=bomb, headers=by_gzip), 413)


def test_an_address_may_end_with_a_slash(client):
    """A redirect would lead a client that came by HTTPS to plain HTTP."""
    options = {"follow_redirects": False}
    assert client.post("/v1/completions/", json=GOOD, **options).status_code == 200
    assert client.get("/v1/models/", **options).json()["object"] == "list"
    assert client.get("/v1/models/toy/", **options).json()["id"] == "toy"
    assert client.get("/healthz/", **options).status_code == 200
    for nothing in ("/v1/completions//", "/page.js/", "/v1/nothing/"):
        error_of(client.get(nothing, **options), 404)


def test_connections_outlive_those_of_the_usual_balancers(client):
    assert http_config(client.app).timeout_keep_alive > 600


def test_missing_and_unknown_fields_are_named(client):
    response = client.post("/v1/completions", json={"model": "toy"})
    assert error_of(response, 400, "prompt") == "You must provide a `prompt` parameter."
    response = client.post("/v1/completions", json=GOOD | {"max_token": 3})
    assert "Unrecognized request argument supplied: max_token" in error_of(
        response, 400, "max_token"
    )


def test_a_lenient_server_ignores_unknown_fields_and_names_each_in_its_log_once(
    service, monkeypatch
):
    said = []
    monkeypatch.setattr(service, "say", said.append)
    lenient = TestClient(make_app(service, settings=HttpSettings(is_lenient=True)))
    part = {"type": "text", "text": "ji", "cache_control": {"type": "ephemeral"}}
    message = {"role": "user", "content": [part], "re\nasoning": None}
    chat = {"model": "toy", "messages": [message], "max_tokens": 4.0, "think": True}
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    json_format = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "x": 1}}
    for _ in range(2):
        assert lenient.post("/v1/completions", json=GOOD | {"think": 1}).status_code == 200
        answer = lenient.post("/v1/chat/completions", json=chat | {"response_format": json_format})
        assert answer.json()["choices"][0]["message"]["content"] == "{}", answer.text
    fields = [sentence.split(", which")[0].removeprefix("requests have ") for sentence in said]
    assert fields == [
        "'think'",
        "'messages.content.cache_control'",
        "'messages.re\\nasoning'",
        "'response_format.json_schema.x'",
    ]
    error_of(lenient.post("/v1/completions", json=GOOD | {"x": 1, "suffix": "a"}), 400, "suffix")
    lenient.post("/v1/completions", json=GOOD | {f"field {n}": n for n in range(1000)})
    assert len(said) == 100


def test_a_prompt_that_fills_the_context_is_refused_with_its_length(client):
    response = client.post("/v1/completions", json=GOOD | {"prompt": [3] * 64})
    message = error_of(response, 400, "prompt", "context_length_exceeded")
    assert "64 tokens, and the context holds 64" in message


def test_a_megabyte_is_refused_without_being_tokenized(client, service, monkeypatch):
    monkeypatch.setattr(type(service.tokenizer), "encode", lambda *_: pytest.fail("was encoded"))
    for where in ("/v1/completions", "/v1/route"):
        body = {"prompt": "jiji " * 200_000} | ({"model": "toy"} if "route" not in where else {})
        error_of(client.post(where, json=body), 400, "prompt", "context_length_exceeded")


def test_a_body_that_is_too_large_or_not_json_is_refused(service):
    app = make_app(service, settings=HttpSettings(max_body_bytes=1000))
    with TestClient(app) as client:
        response = client.post("/v1/completions", json=GOOD | {"prompt": "a" * 2000})
        assert "larger than 1,000 bytes" in error_of(response, 413)
        response = client.post("/v1/completions", content=json.dumps(GOOD))
        said = error_of(response, 415)
        assert "sent without a type. Send JSON: `Content-Type: application/json`" in said
        response = client.post("/v1/completions", data={"model": "toy"})
        error_of(response, 415)


def test_a_missing_route_is_refused_in_the_same_format(client):
    assert "nothing at /v2/x" in error_of(client.get("/v2/x"), 404)
    response = client.get("/v1/completions")
    error_of(response, 405)
    assert response.headers["allow"] == "POST"


def test_unusual_text_is_a_valid_prompt(client):
    for prompt in ("\x00\x01", "<|endoftext|>", "שלום", "😀", "{{7*7}}", "\u2028", "a\r\nb"):
        (choice,) = completion(client, GOOD | {"prompt": prompt, "echo": True})["choices"]
        assert choice["text"].startswith(prompt)


# --- keys ------------------------------------------------------------------------------------


def test_with_api_keys_a_request_must_send_one_of_them(service):
    app = make_app(service, settings=HttpSettings(api_keys=("s3cret", "öther")))
    with TestClient(app) as client:
        assert "API key" in error_of(client.get("/v1/models"), 401, code="invalid_api_key")
        for wrong in ("Bearer wrong", "Bearer s3cre", "s3cret", "Basic s3cret", "Bearer ", "B"):
            response = client.post("/v1/completions", json=GOOD, headers={"Authorization": wrong})
            error_of(response, 401, code="invalid_api_key")
            assert response.headers["www-authenticate"] == "Bearer"
        for right in ("s3cret", "öther"):
            key = f"Bearer {right}".encode()
            response = client.get("/v1/models", headers={"Authorization": key})
            assert response.status_code == 200
        for is_open in ("/healthz", "/readyz", "/metrics", "/openapi.json", "/docs", "/"):
            assert client.get(is_open).status_code == 200
        assert client.get("/openapi.json").json()["security"] == [{"key": []}]


# --- too many requests, and disconnecting: the tests run the loop themselves ---------------------


@pytest.fixture
def idle_service(tiny, limits):
    """A service whose loop is not running, with space for two waiting requests."""
    settings = ServiceSettings(limits=dataclasses.replace(limits, waiting=2))
    with Service(tiny.folder, settings, say=lambda _: None) as service:
        yield service


async def test_a_full_queue_refuses_and_tells_when_to_retry(idle_service):
    async with in_process(idle_service) as client:
        capacity = idle_service.loop.capacity  # the free rows, and two more
        first = [
            asyncio.create_task(client.post("/v1/completions", json=GOOD)) for _ in range(capacity)
        ]
        await until(lambda: idle_service.loop.stats().num_waiting == capacity)
        late = await client.post("/v1/completions", json=GOOD)
        message = error_of(late, 429, code="queue_full")
        assert "Try again" in message
        assert int(late.headers["retry-after"]) >= 1
        never = await client.post("/v1/completions", json=GOOD | {"n": capacity + 1})
        assert f"more than the {capacity}" in error_of(never, 400, "n")
        while not all(task.done() for task in first):
            await asyncio.to_thread(idle_service.loop.run_once)
        assert [task.result().status_code for task in first] == [200] * capacity
    assert idle_service.cache.stats().pinned == 0


async def test_a_request_is_admitted_whole_when_another_client_comes_between_its_choices(
    idle_service, monkeypatch
):
    loop, pinned = idle_service.loop, PathAdmission.pinned
    app, numbers = make_app(idle_service), itertools.count()
    may_go_on = asyncio.Event()

    @contextlib.asynccontextmanager
    async def late_but_for_the_first(admission, modules, client):
        if 0 < next(numbers) < loop.capacity:
            await may_go_on.wait()
        async with pinned(admission, modules, client):
            yield

    async def ask(port, n):
        async with asked_by(app, port) as client:
            return await client.post("/v1/completions", json=GOOD | {"n": n})

    monkeypatch.setattr(PathAdmission, "pinned", late_but_for_the_first)
    first = asyncio.create_task(ask(1, loop.capacity))
    await until(lambda: loop.stats().num_waiting == 1)
    other = asyncio.create_task(ask(2, loop.capacity // 2))
    await until(lambda: loop.stats().num_waiting == 1 + loop.capacity // 2)
    may_go_on.set()
    while not (first.done() and other.done()):
        await asyncio.to_thread(loop.run_once)
    assert (first.result().status_code, other.result().status_code) == (200, 200)


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_client_that_disconnects_frees_its_rows_and_its_path(idle_service, is_streamed):
    app = make_app(idle_service)
    body = json.dumps(GOOD | {"stream": is_streamed, "n": 2}).encode()
    has_left = asyncio.Event()
    answering = asyncio.create_task(ask_and_leave(app, body, has_left))
    await until(lambda: idle_service.loop.stats().num_waiting == 2)
    assert idle_service.cache.stats().pinned == 1
    has_left.set()
    await answering
    await until(lambda: idle_service.cache.stats().pinned == 0)
    while idle_service.loop.run_once():
        pass
    assert idle_service.loop.stats().num_tokens == 0, "tokens were made for a client that had left"


# --- paths that are not whole -------------------------------------------------------------------


def test_paths_that_are_not_whole_answer_503_until_they_are_and_the_others_serve(
    tiny, copy_of, limits, monkeypatch
):
    run = copy_of(tiny)
    notices = []
    with Service(run.folder, ServiceSettings(limits=limits), notices.append) as service:
        release = service.releases.current.release
        broken = run.folder / release.objects[release.paths[3]["late/0001"]].name
        content = broken.read_bytes()
        broken.write_bytes(content[:-5] + bytes([content[-5] ^ 1]) + content[-4:])
        service.follower.verify_current()
        assert "late/0001 is not whole, so paths 1, 3 answer 503" in notices[0]
        service.start()
        with TestClient(make_app(service)) as client:
            assert set(client.get("/readyz").json()["detail"]["paths_not_whole"]) == set("13")
            monkeypatch.setattr("dipaco.serving.models.RETRY_SECONDS", 0.0)
            broken.unlink()  # so it is now: each request looks again
            for path, is_streamed in itertools.product((1, 3), (False, True)):
                body = GOOD | {"path": path, "stream": is_streamed}
                response = client.post("/v1/completions", json=body)
                assert broken.name in error_of(response, 503, "path", "path_not_whole")
            for path in (0, 2):
                completion(client, GOOD | {"path": path})
            told = [sentence for sentence in notices if "late/0001" in sentence]
            assert len(told) == 2, "once as damaged, once as missing"
            broken.write_bytes(content)
            body = GOOD | {"path": 3, "temperature": 0}
            read = completion(client, body)
            assert notices[-1] == "module late/0001 of paths 1, 3 is whole again"

            # In memory, it is served without its bytes.
            monkeypatch.undo()
            broken.unlink()
            service.follower.verify_current()
            assert set(client.get("/readyz").json()["detail"]["paths_not_whole"]) == set("13")
            assert client.get("/readyz").status_code == 200
            assert completion(client, body)["choices"] == read["choices"]


def test_a_run_without_a_whole_path_is_not_served(tiny, copy_of):
    run = copy_of(tiny)
    with Service(run.folder, say=lambda _: None) as service:
        for receipt in service.releases.current.release.objects.values():
            (run.folder / receipt.name).write_bytes(b"not this")
        with pytest.raises(ObjectDamaged):
            service.start()


def test_the_server_is_not_healthy_while_its_device_makes_no_tokens(client, monkeypatch):
    assert client.get("/healthz").status_code == client.get("/readyz").status_code == 200
    monkeypatch.setattr(DeviceHealth, "problem", "the device makes no tokens")
    for route in ("/healthz", "/readyz"):
        answer = client.get(route)
        assert answer.status_code == 503
        assert answer.json()["status"] == "the device makes no tokens"


async def test_a_body_that_does_not_arrive_is_refused_after_a_while(monkeypatch):
    monkeypatch.setattr(requests, "BODY_SECONDS", 0.05)

    async def no_message():
        await asyncio.sleep(60)

    headers = [(b"content-type", b"application/json")]
    slow = Request({"type": "http", "headers": headers}, no_message)
    with pytest.raises(ApiError, match="incomplete after") as raised:
        await requests.read_body(slow, 1000, CompletionRequest)
    assert raised.value.status == 408


@pytest.mark.parametrize("kind", [StoreUnreachable, StoreRefuses, BucketMissing])
def test_a_store_that_does_not_answer_as_it_should_is_told_of_as_503(kind):
    error = api_error_of(kind(url="s3://here", seconds=30.0, problem="no"))
    assert (error.status, error.detail.code) == (503, "path_not_there")
    assert error.headers["Retry-After"] == "5"


def test_token_ids_are_counted_before_they_are_looked_up(client, service, monkeypatch):
    looked_up, check = [], requests.check_known
    monkeypatch.setattr(
        requests, "check_known", lambda *given: looked_up.extend(given[2]) or check(*given)
    )
    for prompt in ([1] * 100_000, [[1] * 100_000, [2]]):
        answer = client.post("/v1/completions", json={"model": "toy", "prompt": prompt})
        assert "100000 tokens" in error_of(answer, 400, code="context_length_exceeded")
    assert not looked_up


# --- what clients of any server expect -----------------------------------------------------------


def test_an_answer_has_the_id_of_its_request_or_a_new_one_and_a_line_is_written(service):
    said = []
    with TestClient(make_app(service, settings=HttpSettings(say=said.append))) as client:
        given = client.get("/health", headers={"X-Request-Id": "mine-7"})
        assert (given.status_code, given.headers["x-request-id"]) == (200, "mine-7")
        made = client.get("/nothing", headers={"X-Request-Id": "two\twords"})
        assert re.fullmatch("[0-9a-f]{32}", made.headers["x-request-id"])
        assert client.get("/version").json() == {"version": dipaco.__version__}
    assert re.fullmatch(r"mine-7 testclient GET /health 200 [\d.]+ ms", said[0])
    assert re.search(r"^[0-9a-f]{32} testclient GET /nothing 404 ", said[1])


def test_pages_of_chosen_sites_only_may_ask(service):
    settings = HttpSettings(cors_origins=("https://here.example",))
    asks = {"Access-Control-Request-Method": "POST"}
    with TestClient(make_app(service, settings=settings)) as client:
        for origin, allowed in (("https://here.example", True), ("https://evil.example", False)):
            headers = {"Origin": origin, "Access-Control-Request-Headers": "authorization"} | asks
            before = client.options("/v1/completions", headers=headers)
            assert ("access-control-allow-origin" in before.headers) == allowed
            answer = client.get("/v1/models", headers={"Origin": origin})
            assert (answer.headers.get("access-control-allow-origin") == origin) == allowed
    with TestClient(make_app(service)) as client:
        answer = client.get("/v1/models", headers={"Origin": "https://here.example"})
        assert "access-control-allow-origin" not in answer.headers
