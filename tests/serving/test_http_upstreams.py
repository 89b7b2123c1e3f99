"""A router before cells, and before any other server: it sends on what it has routed."""

import asyncio
import contextlib
import gzip
import http.client
import json
import socket
import socketserver
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import httpx
import pytest

pytest.importorskip("starlette", reason="HTTP needs the `serve` extra")
pytest.importorskip("aiohttp", reason="a router needs the `serve` extra")

import aiohttp
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from dipaco.cli import serve
from dipaco.launch import devices
from dipaco.runs.opening import reading
from dipaco.serving import upstreams as file
from dipaco.serving.errors import BadUpstreams
from dipaco.serving.http.app import HttpSettings
from dipaco.serving.http.forward import asked_in
from dipaco.serving.http.server import listen
from dipaco.serving.service import Service, ServiceSettings
from dipaco.serving.upstreams import Server, Target, Upstreams, read_router, read_targets
from tests.support.serving_rig import completion, error_of, events_of, post, running
from tests.support.waiting import until

JSON = {"Content-Type": "application/json"}
BODY = {"model": "toy", "prompt": "jiji", "max_tokens": 8, "temperature": 0}
ANSWERED = b'{"id":"x", "choices":[ ]}'


class Fake:
    """An upstream that answers as a test says, and keeps what it was sent."""

    def __init__(self, name):
        self.name, self.sent = name, []
        self.models = ["m"]
        self.answer = self.listing = None

    @contextlib.contextmanager
    def begun(self):
        routes = [
            Route("/v1/models", self._models),
            Route("/v1/completions", self._completion, methods=["POST"]),
            Route("/v1/chat/completions", self._completion, methods=["POST"]),
        ]
        config = uvicorn.Config(Starlette(routes=routes), log_level="critical")
        with listen("127.0.0.1", 0) as listening, running(config, listening):
            self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
            yield self

    def reset(self):
        self.sent.clear()
        self.answer = self.listing = None

    async def _models(self, request):
        if self.listing is not None:
            return await self.listing(request)
        return JSONResponse({"object": "list", "data": [{"id": name} for name in self.models]})

    async def _completion(self, request):
        self.sent.append((request.headers, await request.body()))
        if self.answer is not None:
            return await self.answer(request)
        return Response(ANSWERED, headers={"X-Engine": self.name}, media_type="application/json")


async def broken(request):
    """Resets the connection instead of answering."""
    raise ConnectionResetError


async def until_left(request):
    while not await request.is_disconnected():
        await asyncio.sleep(0.01)
    return Response()


def streamed(*events, then=None):
    """Answers with server-sent events, after which `then` is awaited."""

    async def answer(request):
        async def content():
            for event in events:
                yield event
            if then is not None:
                await then(request)

        return StreamingResponse(content(), media_type="text/event-stream")

    return answer


@contextlib.contextmanager
def begun(given, tiny, limits, serving):
    """The URL of a router before the upstreams of a file, and them."""
    upstreams = Upstreams(read_targets(given, "toy", 4), 20, lambda _: None)
    asyncio.run(upstreams.check(given))
    settings = ServiceSettings(limits=limits)
    with Service(tiny.folder, settings, say=lambda _: None, upstreams=upstreams) as service:
        service.start()
        with serving(service, settings=HttpSettings(upstreams=upstreams)) as url:
            yield url, upstreams


@pytest.fixture(scope="module")
def rig(tiny, limits, serving, tmp_path_factory):
    """A router before two fakes, both of which serve all paths."""
    given = tmp_path_factory.mktemp("upstreams") / "upstreams.yaml"
    with pytest.MonkeyPatch.context() as patch, Fake("a").begun() as a, Fake("b").begun() as b:
        patch.setattr(file, "LOOK_SECONDS", 0.1)
        given.write_text(
            f"0-3: [{{url: {a.url}/v1, model: m, key: secret}}, {{url: {b.url}, model: m}}]"
        )

        def answer_by(answer):
            a.answer = b.answer = answer

        with begun(given, tiny, limits, serving) as (url, upstreams):
            yield SimpleNamespace(fakes=[a, b], url=url, upstreams=upstreams, answer_by=answer_by)


@pytest.fixture
def router(rig):
    """A client of the router. Both fakes answer, and have no requests."""
    for fake in rig.fakes:
        fake.reset()
    until(lambda: not any(s.problem or s.num_open for s in rig.upstreams.servers))
    with httpx.Client(base_url=rig.url, timeout=60) as client:
        yield client


def test_a_body_and_its_answer_pass_as_they_are(rig, router):
    body = (
        b'{ "z": 1.0e0, "tools": [{"type" : "function"}], "model": "toy", "path": 2,\n'
        b' "messages": [{"role": "user", "content": [{"type": "text", "text": "jiji"}, '
        b'{"type": "image_url"}]}], "big": 123456789012345678901234567890 }'
    )
    sent = JSON | {"X-Trace": "7", "Authorization": "Bearer mine"}
    answer = router.post("/v1/chat/completions", content=body, headers=sent)
    (fake,) = [fake for fake in rig.fakes if fake.sent]
    assert (answer.status_code, answer.content) == (200, ANSWERED)
    assert answer.headers["X-Engine"] == fake.name
    ((headers, content),) = fake.sent
    before, _, after = content.partition(b'"model":"m"')
    assert before.replace(b" ", b"") == b'{"z":1.0e0,"tools":[{"type":"function"}],'
    assert b'"path"' not in after
    assert b"123456789012345678901234567890" in after
    assert headers["x-trace"] == "7"
    assert headers.get("authorization") == {"a": "Bearer secret", "b": None}[fake.name]


def test_errors_and_compressed_answers_pass_as_they_are(rig, router):
    async def refuses(request):
        content = gzip.compress(b'{"error": 1}')
        return Response(content, 418, headers={"Content-Encoding": "gzip"})

    rig.answer_by(refuses)
    zipped = gzip.compress(json.dumps(BODY).encode())
    answer = router.post(
        "/v1/completions", content=zipped, headers=JSON | {"Content-Encoding": "gzip"}
    )
    assert (answer.status_code, answer.json()) == (418, {"error": 1})
    assert sum(len(fake.sent) for fake in rig.fakes) == 1


def test_events_pass_as_they_come_and_a_line_in_two_pieces_as_one(rig, router):
    may_end = threading.Event()

    async def in_two_pieces(request):
        async def content():
            yield b"data: 1\n\nda"
            await asyncio.to_thread(may_end.wait, 60)
            yield b"ta: 2\n\n"

        return StreamingResponse(content(), media_type="text/event-stream")

    rig.answer_by(in_two_pieces)
    with router.stream("POST", "/v1/completions", json=BODY) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        pieces = answer.iter_raw()
        assert next(pieces) == b"data: 1\n\n"
        assert sum(server.num_open for server in rig.upstreams.servers) == 1
        may_end.set()
        assert b"".join(pieces) == b"data: 2\n\n"


async def busy(request):
    return JSONResponse({"error": {"message": "busy"}}, 503)


async def broken_inside(request):
    """As vLLM's server whose engine has just died."""
    return JSONResponse({"error": {"message": "EngineCore encountered an issue."}}, 500)


async def lost_after_the_head(request):
    async def content():
        raise ConnectionResetError
        yield b""

    return StreamingResponse(content(), media_type="text/event-stream")


async def lost_in_the_body(request):
    async def content():
        yield b'{"choices":'
        raise ConnectionResetError

    return StreamingResponse(content(), media_type="application/json")


@pytest.mark.parametrize("fault", [busy, broken_inside, lost_after_the_head, lost_in_the_body])
def test_another_upstream_answers_if_one_fails_before_the_first_byte(rig, router, fault):
    first, second = rig.fakes
    for bad, good in ((first, second), (second, first)):
        bad.answer, good.answer = fault, None
        until(lambda: not any(server.problem for server in rig.upstreams.servers))
        for _ in range(6):
            answer = router.post("/v1/completions", json=BODY)
            assert (answer.status_code, answer.content) == (200, ANSWERED)
            assert answer.headers["X-Engine"] == good.name
    assert first.sent
    assert second.sent
    assert failovers(router) > 0


def test_another_answers_if_one_hangs_before_the_first_byte(rig, router, monkeypatch):
    """The connection stays, since its kernel is well. Only what it is asked has no answer."""
    monkeypatch.setattr(file, "ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(file, "HANGING_SECONDS", 0.5)
    before = failovers(router)
    for hung, good in (rig.fakes, reversed(rig.fakes)):
        may_end = threading.Event()

        async def held(request, may_end=may_end):
            await asyncio.to_thread(may_end.wait, 20)
            return Response(ANSWERED, headers={"X-Engine": "hung"}, media_type="application/json")

        until(lambda: not any(server.problem for server in rig.upstreams.servers))
        hung.answer = hung.listing = held
        try:
            for _ in range(4):
                assert router.post("/v1/completions", json=BODY).headers["X-Engine"] == good.name
        finally:
            may_end.set()
            hung.answer = hung.listing = None
    assert failovers(router) > before


REFUSES, GOOD = aiohttp.ClientConnectionError(), None


@pytest.mark.parametrize(
    ("looks", "may_answer", "leaves"),
    [
        ({0: TimeoutError(), 10: TimeoutError()}, True, False),
        ({0: TimeoutError(), 15: TimeoutError()}, True, True),
        ({0: TimeoutError(), 15: TimeoutError()}, False, False),
        ({0: TimeoutError(), 10: GOOD, 15: TimeoutError()}, True, False),
        ({0: TimeoutError(), 10: REFUSES, 15: TimeoutError()}, True, False),
    ],
    ids=["too short", "hangs", "no other answers", "was well between", "refused between"],
)
async def test_a_request_leaves_a_server_that_hangs_for_another_that_answers(
    monkeypatch, looks, may_answer, leaves
):
    hung, other = Server("http://hung", None), Server("http://other", None)
    other.models, other.problem = frozenset({"m"}), None if may_answer else "it is lost"

    async def models():
        return b'{"data": [{"id": "m"}]}'

    def get(*_, **__):
        @contextlib.asynccontextmanager
        async def answer():
            if looks[seconds] is not GOOD:
                raise looks[seconds]
            yield SimpleNamespace(raise_for_status=lambda: None, read=models)

        return answer()

    monkeypatch.setattr(file, "time", SimpleNamespace(monotonic=lambda: 100.0 + seconds))
    with pytest.raises(TimeoutError) if leaves else contextlib.nullcontext():
        async with hung.awaited([Target(other, "m")]):
            for seconds in looks:  # noqa: B007
                await hung.look(SimpleNamespace(get=get))
            await asyncio.sleep(0.01)


def failovers(router):
    (line,) = [
        line
        for line in router.get("/metrics").text.splitlines()
        if line.startswith("dipaco_failovers_total")
    ]
    return float(line.split()[1])


def test_if_all_are_busy_the_last_answer_passes_and_if_all_are_lost_it_is_a_503(rig, router):
    rig.answer_by(busy)
    answer = router.post("/v1/completions", json=BODY)
    assert (answer.status_code, answer.json()) == (503, {"error": {"message": "busy"}})
    assert [len(fake.sent) for fake in rig.fakes] == [1, 1]
    rig.answer_by(lost_after_the_head)
    answer = router.post("/v1/completions", json=BODY)
    assert "No upstream of path" in error_of(answer, 503, code="no_upstream")


def test_a_stream_that_breaks_off_ends_with_an_error(rig, router):
    for half in (b"", b'data: {"choices": [{"te', b"data: 2\n"):
        rig.answer_by(streamed(b"data: 1\n\n" + half, then=broken))
        answer = router.post("/v1/completions", json=BODY)
        events = [event.strip() for event in answer.content.split(b"\n\n") if event.strip()]
        first, *others, last = events
        assert first == b"data: 1"
        assert others == ([b"data: 2"] if half.endswith(b"\n") else [])
        assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "upstream_lost"


def test_which_sites_may_read_an_answer_is_not_said_by_upstreams(rig, router):
    async def open_to_all(request):
        headers = {"Access-Control-Allow-Origin": "*", "X-Engine": "it"}
        return Response(ANSWERED, headers=headers, media_type="application/json")

    rig.answer_by(open_to_all)
    answer = router.post("/v1/completions", json=BODY, headers={"Origin": "http://evil.example"})
    assert answer.headers["X-Engine"] == "it"
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_client_that_leaves_ends_its_request_at_the_upstream(rig, router, is_stream):
    has_left = threading.Event()

    async def waits(request):
        answer = await until_left(request)
        has_left.set()
        return answer

    rig.answer_by(streamed(b"data: 1\n\n", then=waits) if is_stream else waits)
    host, port = rig.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(b"".join(post(BODY)))
        if is_stream:
            while b"data: 1" not in connection.recv(4096):
                pass
        until(lambda: any(fake.sent for fake in rig.fakes))
    if is_stream:  # Starlette's own streams notice it themselves, and are cancelled
        until(lambda: not any(server.num_open for server in rig.upstreams.servers))
    else:
        until(has_left.is_set)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other options")
def test_the_kernel_asks_an_upstream_that_says_nothing_whether_it_is_there(rig, router):
    """A machine without power resets no connection: a request would wait for ever."""
    router.post("/v1/completions", json=BODY)
    connector = rig.upstreams.open().connector
    idle = [protocol for held in connector._conns.values() for protocol, _ in held]
    assert idle
    for protocol in idle:
        its = protocol.transport.get_extra_info("socket").getsockopt
        assert its(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        asked_for = [its(socket.IPPROTO_TCP, getattr(socket, name)) for name in file.SILENCE]
        assert asked_for == list(file.SILENCE.values())


def test_the_upstream_with_the_fewest_requests_is_next(rig, router):
    may_end = threading.Event()

    async def held(request):
        await asyncio.to_thread(may_end.wait, 60)
        return Response(ANSWERED, media_type="application/json")

    rig.answer_by(held)
    with ThreadPoolExecutor(6) as threads:
        for number in range(1, 7):
            threads.submit(httpx.post, f"{rig.url}/v1/completions", json=BODY, timeout=60)
            until(lambda number=number: sum(len(fake.sent) for fake in rig.fakes) == number)
        assert [len(fake.sent) for fake in rig.fakes] == [3, 3]
        may_end.set()


def test_one_that_serves_the_model_no_longer_is_asked_last(rig, router):
    first, _ = rig.fakes
    first.models = ["other"]
    try:
        until(lambda: "other" in rig.upstreams.servers[0].models)
        for _ in range(6):
            assert router.post("/v1/completions", json=BODY).headers["X-Engine"] == "b"
        assert not first.sent
    finally:
        first.models = ["m"]
        until(lambda: "m" in rig.upstreams.servers[0].models)


def test_what_the_router_cannot_route_is_a_sentence(rig, router, prompts, client):
    def refused(body, *expected):
        return error_of(router.post("/v1/completions", json=body), *expected)

    assert "`toy`" in refused(BODY | {"model": "toy/dense"}, 404, "model", "model_not_found")
    refused({"model": "toy"}, 400, "prompt")
    refused(BODY | {"path": 9}, 400, "path", "no_such_path")
    refused(BODY | {"model": "toy/path_0009"}, 400, "path", "no_such_path")
    refused(BODY | {"model": "toy/path_0001", "path": 2}, 400, "path", "invalid_value")
    chosen = {path_of(client, prompt) for prompt in prompts}
    assert len(chosen) > 1
    refused(BODY | {"prompt": prompts}, 400, "prompt", "several_paths")
    assert not any(fake.sent for fake in rig.fakes)


def path_of(client, prompt):
    return client.post("/v1/route", json={"prompt": prompt}).json()["path"]


def test_requests_that_wait_at_the_end_of_the_drain_are_answered_stopping(rig, router):
    rig.answer_by(until_left)
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(router.post, "/v1/completions", json=BODY)
        until(lambda: rig.upstreams.waiting and any(fake.sent for fake in rig.fakes))
        rig.upstreams.stop(0.0)
    error_of(answer.result(), 503, code="stopping")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("0-3: [", "while parsing a flow node"),
        ("0-3: {url: http://x, name: y}", "unknown field `name`"),
        ("0-3: {model: y}", "missing required field `url`"),
        ("0-3: []", "length >= 1"),
        ("0-4: {url: http://x}", "there is no path 4, the last is 3"),
        ("0-2: {url: http://x}", "paths 3 have none"),
        ("a: {url: http://x}", "`a` is not a list of paths"),
        ("0-3: http://x", "`0-3` has `http://x`, and a path has {url"),
        ("0-3: {url: localhost:8000}", "`localhost:8000` is no address"),
        ("0-3: {url: 'http://[::1'}", "no address"),
        ("0-3: {url: 'http://[zz]:80'}", "no address"),
        ("0-3: {url: 'http://x:99999'}", "no address"),
        ("0-3: {url: 'http://x:80?a=b'}", "no address"),
        ("0-3: {url: http://x, model: '{number}'}", "no name of a model"),
        ("0-3: {url: http://x, model: 'm{path.real.y}'}", "no name of a model"),
        ("0-3: {url: http://x, model: 'm{path[0]}'}", "no name of a model"),
        ("0-3: {url: http://x, model: '{path:999999999999}'}", "no name of a model"),
        ('0-3: {url: http://x, key: "a\\nb"}', "a key has characters"),
        ("", "such as `0-63"),
        ("0-3: {url: http://x}\n0-3: {url: http://y}", "`0-3` is there twice"),
    ],
)
def test_a_file_that_cannot_be_used_is_a_sentence(tmp_path, given, problem):
    (tmp_path / "file.yaml").write_text(given)
    with pytest.raises(BadUpstreams, match=problem) as told:
        read_targets(tmp_path / "file.yaml", "toy", 4)
    assert "\n" not in str(told.value)


def test_an_exported_router_pins_its_release_and_one_of_another_is_refused(tiny, tmp_path):
    file, exported = tmp_path / "file.yaml", tmp_path / "out" / "router.json"
    file.write_text("router: out/router.json\n0-3: {url: http://x}")
    exported.parent.mkdir()
    assert len(read_targets(file, "toy", 4)) == 4
    with reading(tiny.folder) as run:
        with pytest.raises(BadUpstreams, match=r"its router out/router.json: .*No such file"):
            read_router(file, run, "modular", None)
        for content in (b'{"arm": "\xff"}', b'{"arm": "modular", "phase": 18446744073709551616}'):
            exported.write_bytes(content)
            with pytest.raises(BadUpstreams, match=r"its router out/router.json: "):
                read_router(file, run, "modular", None)
        file.write_text('router: "a\\0b"')
        with pytest.raises(BadUpstreams, match="its router"):
            read_router(file, run, "modular", None)
        file.write_text("router: out/router.json\n0-3: {url: http://x}")
        digest = run.ledger.facts.release("modular", 1).digest
        facts = {"arm": "modular", "phase": 1, "release": digest, "rule": "features", "kind": "x"}
        exported.write_text(json.dumps(facts))
        found = read_router(file, run, "modular", None)
        assert (found.phase, found.rule) == (1, "features")
        for arm, phase in (("modular", 2), ("dense", None)):
            with pytest.raises(BadUpstreams, match="`modular` at phase 1, and `--arm` or"):
                read_router(file, run, arm, phase)
        exported.write_text(json.dumps(facts | {"phase": 2}))
        with pytest.raises(BadUpstreams, match=f"release {digest}, and this run has"):
            read_router(file, run, "modular", None)
        file.write_text("0-3: {url: http://x}")
        assert read_router(file, run, "modular", None) is None


@pytest.mark.parametrize(("platforms", "is_on_cpu"), [("", True), ("cuda", False)])
def test_a_router_takes_an_accelerator_if_it_is_told_to(
    tiny, tmp_path, monkeypatch, platforms, is_on_cpu
):
    told, given = [], tmp_path / "file.yaml"
    given.write_text("0-3: {url: http://x}")
    monkeypatch.setattr(devices, "use_cpu_only", lambda: told.append(True))
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    options = SimpleNamespace(upstream=given, arm="modular", phase=None, waiting=8)
    with reading(tiny.folder) as run:
        assert serve._upstreams(run, options).capacity == 8
    assert bool(told) == is_on_cpu


def test_paths_have_the_names_that_the_file_gives_or_those_of_cells(tmp_path):
    (tmp_path / "file.json").write_text(
        '{"0,2-3": {"url": "http://x/v1/"}, "1": [{"url": "http://x", "model": "m{path}"}],'
        '"3": [{"url": "http://y", "key": "k"}, {"url": "http://x", "model": "{path:03d}"}]}'
    )
    targets = read_targets(tmp_path / "file.json", "{toy}", 4)
    names = {path: [each.model for each in of_path] for path, of_path in targets.items()}
    assert names[0] == ["{toy}/path_0000"]
    assert names[1] == ["m1"]
    assert names[3] == ["{toy}/path_0003", "{toy}/path_0003", "003"]
    assert targets[0][0].server is targets[1][0].server
    assert targets[3][1].server.headers == {"Authorization": "Bearer k"}


async def test_an_upstream_of_another_model_is_refused_before_the_port_opens(rig, tmp_path):
    given = tmp_path / "file.yaml"
    given.write_text(f"0-3: {{url: {rig.fakes[0].url}, model: other}}")
    upstreams = Upstreams(read_targets(given, "toy", 4), 20, print)
    with pytest.raises(BadUpstreams, match=r"path 0: .* serves `m` and not `other`"):
        await upstreams.check(given)


def test_a_chat_is_routed_by_what_the_user_asked_first():
    system = {"role": "system", "content": "be brief"}
    first = {"role": "user", "content": [{"type": "image_url"}, {"type": "text", "text": "one"}]}
    later = [{"role": "tool", "content": "5"}, {"role": "user", "content": "two"}]
    assert asked_in([system, first, {"role": "assistant", "tool_calls": []}, *later]) == "one"
    assert asked_in([system]) == "be brief"
    assert asked_in([{"role": "user", "content": None}]) == ""


class ClosesAfterAStream(socketserver.StreamRequestHandler):
    """An upstream that takes no request on a connection that had a stream, and does not say so, as
    llama.cpp's server.
    """

    def handle(self):
        is_stream = False
        while (line := self.rfile.readline()) and not is_stream:
            length = int(http.client.parse_headers(self.rfile)["Content-Length"] or 0)
            kind, content = "application/json", b'{"data": [{"id": "m"}]}'
            if line.startswith(b"POST"):
                content = ANSWERED
                is_stream = json.loads(self.rfile.read(length)).get("stream", False)
            if is_stream:
                kind, content = "text/event-stream", b"data: [DONE]\n\n"
            fields = f"Content-Type: {kind}\r\nContent-Length: {len(content)}"
            self.wfile.write(f"HTTP/1.1 200 OK\r\n{fields}\r\n\r\n".encode() + content)


def test_a_connection_that_had_a_stream_is_not_used_again(tiny, limits, serving, tmp_path):
    with contextlib.ExitStack() as stack:
        fake = socketserver.ThreadingTCPServer(("127.0.0.1", 0), ClosesAfterAStream)
        threading.Thread(target=stack.enter_context(fake).serve_forever).start()
        stack.callback(fake.shutdown)
        given = tmp_path / "file.yaml"
        given.write_text(f"0-3: {{url: 'http://127.0.0.1:{fake.server_address[1]}', model: m}}")
        url, upstreams = stack.enter_context(begun(given, tiny, limits, serving))
        router = stack.enter_context(httpx.Client(base_url=url, timeout=60))
        for body in (BODY, BODY | {"stream": True}) * 3:
            assert router.post("/v1/completions", json=body).status_code == 200
            assert upstreams.servers[0].problem is None
        assert failovers(router) == 0


@pytest.fixture(scope="module")
def cells(tiny, limits, serving, tmp_path_factory):
    """A router before two cells of two paths each."""
    with contextlib.ExitStack() as stack:

        def service(**settings):
            given = {"upstreams": settings.pop("upstreams", None), "say": lambda _: None}
            settings = ServiceSettings(limits=limits, **settings)
            return stack.enter_context(Service(tiny.folder, settings, **given))

        halves = [service(paths=(0, 1)), service(paths=(2, 3))]
        for cell in halves:
            cell.start()
        urls = [stack.enter_context(serving(cell)) for cell in halves]
        given = tmp_path_factory.mktemp("cells") / "cells.yaml"
        given.write_text(f"0-1: {{url: {urls[0]}}}\n2-3: {{url: {urls[1]}}}\n")
        upstreams = Upstreams(read_targets(given, "toy", 4), 20, lambda _: None)
        asyncio.run(upstreams.check(given))
        before = service(upstreams=upstreams)
        before.start()
        settings = HttpSettings(upstreams=upstreams, api_keys=("one", "two"))
        url = stack.enter_context(serving(before, settings=settings))
        yield SimpleNamespace(url=url, cells=halves, urls=urls)


def test_a_router_before_cells_gives_the_texts_of_one_process(cells, client, prompts):
    paths = set()
    headers = {"Authorization": "Bearer one"}
    with httpx.Client(base_url=cells.url, timeout=60, headers=headers) as router:
        for prompt in prompts:
            body = BODY | {"prompt": prompt, "logprobs": 2}
            alone, routed = (completion(each, body) for each in (client, router))
            assert routed["choices"] == alone["choices"]
            assert routed["usage"] == alone["usage"]
            (choice,) = routed["choices"]
            assert routed["model"] == f"toy/path_{choice['path']:04d}"
            paths.add(choice["path"])
            events = events_of(router.post("/v1/completions", json=body | {"stream": True}))
            assert "".join(event["choices"][0]["text"] for event in events) == choice["text"]
            assert path_of(router, prompt) == choice["path"]
            asked = {"model": "toy", "input": prompt, "max_output_tokens": 4, "temperature": 0}
            alone, routed = (
                each.post("/v1/responses", json=asked).json() for each in (client, router)
            )
            assert routed["output"][0]["content"] == alone["output"][0]["content"]
            assert routed["path"] == alone["path"] == choice["path"]
        later = {"model": "toy", "input": "ji", "previous_response_id": "resp_1"}
        error_of(router.post("/v1/responses", json=later), 400, "previous_response_id")
        assert router.get("/readyz").status_code == 200
        assert "dipaco_replicas 2.0" in router.get("/metrics").text
    assert paths & {0, 1}
    assert paths & {2, 3}
    for cell, its_paths in zip(cells.cells, ((0, 1), (2, 3)), strict=True):
        served = cell.releases.current
        held = {m for p in its_paths for m in served.modules_of(p)}
        assert 0 < cell.cache.stats().modules <= len(held) == 3
        assert cell.routing_stats().prompts == 0


def test_cells_reuse_what_one_key_of_the_router_has_asked_for_that_key_only(cells):
    body = BODY | {"prompt": "asked by one of two keys", "path": 0, "max_tokens": 1}

    def reused(key):
        before = cells.cells[0].loop.stats().num_prompts_reused
        headers = {"Authorization": f"Bearer {key}"}
        with httpx.Client(base_url=cells.url, timeout=60, headers=headers) as router:
            completion(router, body)
        return cells.cells[0].loop.stats().num_prompts_reused - before

    assert [reused(key) for key in ("one", "two", "one", "two")] == [0, 0, 1, 1]


def test_a_cell_answers_for_its_paths_by_name_only(cells):
    with httpx.Client(base_url=cells.urls[1], timeout=60) as cell:
        names = [each["id"] for each in cell.get("/v1/models").json()["data"]]
        assert names == ["toy/path_0002", "toy/path_0003"]
        assert cell.get("/v1/models/toy/path_0002").json()["id"] == "toy/path_0002"
        for body in (BODY, BODY | {"path": 0}, BODY | {"model": "toy/path_0001"}):
            answer = cell.post("/v1/completions", json=body)
            assert "paths 2-3 only" in error_of(answer, 404, "model", "path_elsewhere")
        both = BODY | {"model": "toy/path_0002", "path": 3}
        error_of(cell.post("/v1/completions", json=both), 400, "path")
        assert cell.post("/v1/completions", json=both | {"path": 2}).status_code == 200
        waiting = 'vllm:num_requests_waiting{engine="0",model_name="toy"} 0.0'
        assert waiting in cell.get("/metrics").text
