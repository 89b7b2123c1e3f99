"""Structured output: every text obeys its schema, drawn or greedy, streamed or whole."""

import asyncio
import gc
import json
import threading
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("starlette", reason="HTTP needs the `serve` extra")
pytest.importorskip("llguidance", reason="it is in the `serve` extra")


from dipaco.serving.decoding import grammar
from dipaco.serving.decoding.grammar import GrammarState
from dipaco.serving.decoding.request_queue import Finish, GenerationRequest
from dipaco.serving.errors import GrammarFailed
from dipaco.serving.http import structured
from dipaco.serving.http.app import REQUEST_THREADS
from tests.support.serving_rig import (
    completion,
    error_of,
    events_of,
    full_logits,
    in_process,
    object_of,
)
from tests.support.waiting import until

SCHEMA = object_of(
    a={"type": "integer", "minimum": 0, "maximum": 999},
    b={"enum": ["ja", "no"]},
    c={"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
)
BODY = {"model": "toy", "prompt": "jiji", "max_tokens": 60}


def format_of(schema=SCHEMA):
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


def ask(client, **body):
    return completion(client, BODY | {"response_format": format_of()} | body)


def is_valid(text):
    found = json.loads(text)
    return (
        list(found) == ["a", "b", "c"]
        and type(found["a"]) is int
        and 0 <= found["a"] <= 999
        and found["b"] in ("ja", "no")
        and len(found["c"]) <= 2
        and {type(each) for each in found["c"]} <= {bool}
    )


def test_every_draw_obeys_the_schema(client):
    answer = ask(client, n=32, temperature=1.5, seed=1)
    texts = [choice["text"] for choice in answer["choices"]]
    assert all(map(is_valid, texts)), texts
    assert {choice["finish_reason"] for choice in answer["choices"]} == {"stop"}
    assert len(set(texts)) > 10
    assert [choice["text"] for choice in ask(client, n=32, temperature=1.5, seed=1)["choices"]] == (
        texts
    )
    assert answer["usage"]["completion_tokens"] < 32 * 50


def test_a_greedy_text_takes_the_likeliest_token_that_the_schema_allows(client, service):
    answer = ask(client, temperature=0)
    release = service.releases.current.release
    parts = service.run.path_of(release, answer["choices"][0]["path"])
    ids = service.tokenizer.encode(["jiji"])[0].tolist()
    num_prompt = len(ids)
    state = service.grammars.begin(json.dumps(SCHEMA), [], service.stop_ids)
    while not state.is_complete:
        logits = full_logits(service.model, parts, ids)[-1]
        bits = np.unpackbits(state.allowed_W.view(np.uint8), bitorder="little")[: len(logits)]
        drawn = int(np.argmax(np.where(bits, logits, -np.inf)))
        ids.append(state.forced[0] if state.forced else drawn)
        state.add(ids[-1])
    assert answer["choices"][0]["text"] == service.tokenizer.decode(ids[num_prompt:])
    assert answer["usage"]["completion_tokens"] == len(ids) - num_prompt
    assert is_valid(answer["choices"][0]["text"])


def test_streams_stops_and_fewest_tokens_work_with_a_schema(client):
    whole = ask(client, temperature=0)["choices"][0]["text"]
    body = BODY | {"response_format": format_of(), "temperature": 0, "stream": True}
    events = events_of(client.post("/v1/completions", json=body))
    choices = [event["choices"][0] for event in events]
    assert "".join(choice["text"] for choice in choices) == whole
    assert choices[-1]["finish_reason"] == "stop"
    (stopped,) = ask(client, temperature=0, stop='"b"')["choices"]
    assert (stopped["text"], stopped["finish_reason"]) == (whole[: whole.find('"b"')], "stop")
    # The text ends where the schema ends it, however many tokens are wanted.
    for more in ({"min_tokens": 55}, {"ignore_eos": True}, {"logprobs": 2}):
        assert ask(client, temperature=0, **more)["choices"][0]["text"] == whole
    (cut,) = ask(client, temperature=0, max_tokens=3)["choices"]
    assert cut["finish_reason"] == "length"
    assert whole.startswith(cut["text"])


def test_any_object_begins_as_one(client):
    (choice,) = ask(client, response_format={"type": "json_object"}, seed=3)["choices"]
    assert choice["text"].startswith("{")
    if choice["finish_reason"] == "stop":
        assert isinstance(json.loads(choice["text"]), dict)


def test_a_text_that_goes_on_elsewhere_goes_on_in_its_grammar(service):
    def made(made_ids):
        prompt = (40, 41, 42)
        request = GenerationRequest(
            prompt_ids=(*prompt, *made_ids),
            num_given=len(prompt),
            path=1,
            modules=service.releases.current.modules_of(1),
            release=service.releases.current.digest,
            max_new_tokens=50 - len(made_ids),
            schema=json.dumps(SCHEMA),
            stop_ids=service.stop_ids,
        )
        stream, items = service.loop.submit(request), list(made_ids)
        while not isinstance(item := stream.get(timeout_seconds=60), Finish):
            items.append(item.id)
        return items, item

    whole, end = made(())
    assert end == Finish("stop")
    for number in (1, 5, len(whole) - 1, len(whole)):
        assert made(tuple(whole[:number])) == (whole, end)


def test_a_grammar_that_fails_ends_its_own_text_with_a_sentence(client, monkeypatch):
    def fail(self, token):
        raise GrammarFailed(problem="too many states")

    monkeypatch.setattr(GrammarState, "add", fail)
    body = BODY | {"response_format": format_of()}
    message = error_of(client.post("/v1/completions", json=body), 400, "response_format")
    assert "too many states" in message
    assert client.get("/healthz").json()["status"] == "ok"


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"type": "nope"}, "nope"),
        ({"type": "object", "properties": 3}, "properties"),
        ({"$ref": "#/nowhere"}, "nowhere"),
        ({"type": "string", "pattern": "(("}, "regex parse error: unclosed group. Change"),
        ({"not": {"type": "string"}}, "not"),
        ({"enum": []}, ""),
        ({"$ref": "#"}, "leads back to itself"),
        ({"type": "integer", "multipleOf": 9999991}, "takes more than"),
    ],
    ids=str,
)
def test_a_schema_that_cannot_be_used_is_refused(client, schema, problem):
    body = BODY | {"response_format": format_of(schema)}
    answer = client.post("/v1/completions", json=body)
    assert problem in error_of(answer, 400, "response_format.json_schema.schema")


def test_a_deep_schema_is_refused_and_a_wrong_format_named(client):
    schema: dict = {"type": "integer"}
    for _ in range(300):
        schema = {"type": "array", "items": schema}
    body = BODY | {"response_format": format_of(schema)}
    error_of(client.post("/v1/completions", json=body), 400)
    for wrong, param in (
        ({"type": "grammar"}, "response_format.type"),
        ({"type": "json_schema"}, "response_format.json_schema"),
        (
            {"type": "json_schema", "json_schema": {"schema": {}}},
            "response_format.json_schema.name",
        ),
        ("json", "response_format"),
    ):
        error_of(client.post("/v1/completions", json=body | {"response_format": wrong}), 400, param)


def test_without_the_package_a_sentence_says_so(client, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "llguidance", None)
    body = BODY | {"response_format": format_of({"const": "never compiled"})}
    message = error_of(client.post("/v1/completions", json=body), 400, "response_format")
    assert "`llguidance`" in message


def test_a_schema_is_compiled_once_and_not_by_the_loop_however_large_it_is(
    service, client, monkeypatch
):
    compiled, make = [], grammar.Grammar.__init__

    def making(self, *args):
        compiled.append(threading.current_thread().name)
        make(self, *args)

    monkeypatch.setattr(grammar.Grammar, "__init__", making)
    monkeypatch.setattr(grammar, "RECENT_BYTES", 0)
    schema = SCHEMA | {"title": "compiled once"}
    ask(client, n=3, response_format=format_of(schema))
    assert len(compiled) == 1
    assert "serving-loop" not in compiled
    text = json.dumps(schema, separators=(",", ":"))

    def is_gone():  # as no one needs it
        gc.collect()
        return text not in service.grammars._live

    until(is_gone)


async def test_requests_do_not_wait_for_the_schemas_of_others(service, monkeypatch):
    begun, may_end, make = threading.Semaphore(0), threading.Event(), grammar.Grammar.compiled

    def compiled(self):
        if "slow" in self.schema:
            begun.release()
            assert may_end.wait(60)
        return make(self)

    monkeypatch.setattr(grammar.Grammar, "compiled", compiled)

    try:
        async with in_process(service) as client:

            async def answer(**more):
                body = BODY | {"max_tokens": 2} | more
                return await client.post("/v1/completions", json=body, timeout=60)

            known = format_of({"const": "known"})
            assert (await answer(response_format=known)).status_code == 200
            slow = [
                asyncio.ensure_future(answer(response_format=format_of({"const": f"slow {n}"})))
                for n in range(REQUEST_THREADS)
            ]
            for _ in range(structured.COMPILING):
                await asyncio.to_thread(begun.acquire)
            async with asyncio.timeout(30):
                assert (await answer()).status_code == 200
                assert (await answer(response_format=known)).status_code == 200
            monkeypatch.setattr(structured, "COMPILE_SECONDS", 0.01)
            late = await answer(response_format=format_of({"const": "its turn does not come"}))
            may_end.set()
            slow = await asyncio.gather(*slow)
    finally:
        may_end.set()
    message = error_of(late, 503, "response_format.json_schema.schema")
    assert "not compiled within" in message
    assert late.headers["Retry-After"]
    assert {answer.status_code for answer in slow} == {200}


class OneSlowSchema:
    """In the place of `Grammars`: all but "quick" take until they may end; "broken" fails then."""

    def __init__(self):
        self.begun, self.has_begun, self.may_end = [], threading.Event(), threading.Event()

    def ready(self, schema):
        return None

    def compiled(self, schema):
        self.begun.append(schema)
        if schema != "quick":
            self.has_begun.set()
            assert self.may_end.wait(60)
        if schema == "broken":
            raise GrammarFailed(problem=f"attempt {self.begun.count(schema)}")
        return SimpleNamespace(problem=None, schema=schema)


@pytest.mark.parametrize("schema", ["slow", "broken"])
async def test_a_schema_that_many_bring_at_once_takes_one_thread(schema):
    grammars = OneSlowSchema()
    compiler = structured.SchemaCompiler(grammars)

    def ask(schema, client):
        wanted = structured.WantedSchema(schema, "schema")
        return asyncio.ensure_future(compiler.compiled(wanted, client))

    try:
        first, *others = [ask(schema, f"client {n % 3}") for n in range(6)]
        await asyncio.to_thread(grammars.has_begun.wait, 60)
        async with asyncio.timeout(10):
            assert (await ask("quick", "client 9")).schema == "quick"
        late = ask(schema, "client 9")
        assert (await ask("quick", "client 9")).schema == "quick"  # `late` has joined
        first.cancel()
        grammars.may_end.set()
        gone, *answers = await asyncio.gather(first, *others, late, return_exceptions=True)
        assert grammars.begun.count(schema) == 1
        again = await asyncio.gather(ask(schema, "client 1"), return_exceptions=True)
    finally:
        grammars.may_end.set()
    assert isinstance(gone, asyncio.CancelledError)
    assert grammars.begun.count(schema) == 2
    if schema == "slow":
        assert {answer.schema for answer in answers + again} == {"slow"}
    else:
        assert {str(answer) for answer in answers} == {str(GrammarFailed(problem="attempt 1"))}
        assert str(again[0]) == str(GrammarFailed(problem="attempt 2"))
