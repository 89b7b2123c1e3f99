"""A router's answers: the path of a request is chosen here, and an upstream of the path answers.

The body is sent on as it came, apart from `model`, and from `path`, which chooses the path here.
The answer is sent back as it comes. Until its first byte has been sent, another upstream may still
take over.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import aiohttp
import msgspec
from starlette.requests import Request
from starlette.responses import Response

from dipaco.serving.dispatch import API_KEY, PromptRouter
from dipaco.serving.errors import NoUpstream
from dipaco.serving.fairness import ClientPlaces, FairThreads
from dipaco.serving.http.chat_template import routed_text
from dipaco.serving.http.errors import ApiError
from dipaco.serving.http.metrics import Metrics
from dipaco.serving.http.protocol import Index, TokenId
from dipaco.serving.http.requests import decode, encode_in_turn, prompt_list, read_body
from dipaco.serving.http.responses import ClosingStream, while_connected
from dipaco.serving.http.responses_api import check_stateless
from dipaco.serving.service import Service
from dipaco.serving.upstreams import Target, Upstreams

OF_A_CONNECTION = {"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}
OF_A_BODY = {"content-encoding", "content-length"}  # the body here is new, and not compressed
OF_THIS_SERVER = {"authorization", "cookie", "expect", "host", "proxy-authorization"}
NOT_SENT_ON = OF_A_CONNECTION | OF_A_BODY | OF_THIS_SERVER
# `--cors-origin` alone says which sites may read answers.
NOT_SENT_BACK = OF_A_CONNECTION | {"access-control-allow-origin", "date", "server"}
# Another upstream may still answer. 500: vLLM whose engine died, LiteLLM that does not reach one.
BUSY = (429, 500, 502, 503, 504)
FAILURES = (aiohttp.ClientError, OSError, TimeoutError)


class _RoutedFields(msgspec.Struct):
    """The fields of a request that are read here. All others are the upstream's."""

    model: str
    path: Index | None = None
    prompt: str | list[str | TokenId | list[TokenId]] | None = None
    messages: list[dict[str, Any]] | None = None
    input: str | list[dict[str, Any]] | None = None  # at /v1/responses
    previous_response_id: Any = None
    conversation: Any = None


class _Relay:
    """The answer of an upstream, as it comes."""

    def __init__(self, target: Target, response: aiohttp.ClientResponse, first: bytes):
        self.target, self.response, self._first = target, response, first
        self._held = contextlib.ExitStack()

    def hold(self, places: contextlib.ExitStack) -> None:
        """Gives these places back at the end, after those before."""
        self._held.push(places)

    async def content(self) -> AsyncGenerator[bytes]:
        """The body, in whole lines. A stream that breaks off ends with an error as its last event,
        and without the half of a line that came before.
        """
        piece, rest = self._first, b""
        try:
            while piece:
                lines, end, rest = (rest + piece).rpartition(b"\n")
                if end:
                    yield lines + end
                piece = await self.response.content.readany()
            yield rest
        except FAILURES as error:
            self.target.server.failed(error)
            broken = ApiError(502, f"The stream broke off: {error}.", code="upstream_lost")
            yield b"\ndata: " + broken.body() + b"\n\n"

    def close(self) -> None:
        """Ends the request at the upstream, unless its answer is complete."""
        self._held.close()


class Forwarder:
    """One for all requests of a router, used in one event loop only."""

    def __init__(
        self,
        service: Service,
        upstreams: Upstreams,
        places: ClientPlaces,
        router: PromptRouter,
        threads: FairThreads,
        metrics: Metrics,
    ):
        self._service, self._upstreams, self._metrics = service, upstreams, metrics
        self._places, self._router, self._threads = places, router, threads

    async def answer(self, request: Request, client: str, max_body_bytes: int) -> Response:
        """Raises `ApiError`, `ClientHungUp`, `NoUpstream`, and the errors of routing."""
        content = bytes(await read_body(request, max_body_bytes, msgspec.Raw))
        body = decode(content, _RoutedFields)
        with contextlib.ExitStack() as places:
            places.enter_context(self._places.taken(client, 1, self._upstreams.capacity))
            begun = self._begun(request, client, body, decode(content, dict[str, msgspec.Raw]))
            relay = await while_connected(request, begun)
            relay.hold(places.pop_all())
        status, came = relay.response.status, relay.response.headers.items()
        headers = {name: value for name, value in came if name.lower() not in NOT_SENT_BACK}
        parts = relay.content(), relay.close, self._metrics.hang_ups.inc
        return ClosingStream(*parts, status_code=status, headers=headers)

    async def _begun(
        self, request: Request, client: str, body: _RoutedFields, fields: Mapping[str, msgspec.Raw]
    ) -> _Relay:
        """The answer of the first upstream that begins one."""
        task = asyncio.current_task()
        assert task is not None
        self._upstreams.waiting.add(task)
        try:
            with self._metrics.routing.time():
                path, prompt = await self._path_of(client, body)
            targets = self._upstreams.in_turn(path, prompt)
            # The first is asked again at last: it may only have closed an idle connection.
            for number, target in enumerate([*targets, targets[0]], start=1):
                try:
                    async with target.server.awaited(targets[number:]):
                        relay = await self._asked(request, client, target, fields)
                except FAILURES as error:
                    target.server.failed(error)
                else:
                    if relay.response.status not in BUSY or number >= len(targets):
                        return relay
                    relay.close()
                self._metrics.failovers.inc()
            raise NoUpstream(path=path, problem=targets[0].problem)
        finally:
            self._upstreams.waiting.discard(task)

    async def _asked(
        self, request: Request, client: str, target: Target, fields: Mapping[str, msgspec.Raw]
    ) -> _Relay:
        """The answer of one upstream, once it has begun. One that is no stream is complete."""
        sent = {name: value for name, value in fields.items() if name != "path"}
        sent["model"] = msgspec.Raw(msgspec.json.encode(target.model))
        if target.is_cell and client.startswith(API_KEY):  # A cell sees the router's key alone.
            salt = f"{client} {bytes(fields.get('cache_salt', b'')).decode()}"
            sent["cache_salt"] = msgspec.Raw(msgspec.json.encode(salt))
        came = request.headers.items()
        headers = {name: value for name, value in came if name not in NOT_SENT_ON}
        headers |= target.server.headers
        url = target.server.url + request.url.path.rstrip("/")
        with contextlib.ExitStack() as held:
            target.server.num_open += 1
            held.callback(_give_back, target)
            content = msgspec.json.encode(sent)
            wants_stream = bytes(fields.get("stream", b"")) == b"true"
            response = await self._upstreams.open(wants_stream).post(
                url, data=content, headers=headers, allow_redirects=False
            )
            held.callback(response.close)
            is_stream = response.content_type == "text/event-stream"
            first = await (response.content.readany() if is_stream else response.read())
            relay = _Relay(target, response, first)
            relay.hold(held.pop_all())
        return relay

    async def _path_of(self, client: str, body: _RoutedFields) -> tuple[int, bytes]:
        """The path of a request, and the text by which it was routed."""
        model, path = self._service.models.asked(body.model, body.path)
        served = model.releases.current
        check_stateless("previous_response_id", body.previous_response_id)
        check_stateless("conversation", body.conversation)
        messages = body.input if body.messages is None else body.messages
        if messages is not None:
            is_text = isinstance(messages, str)
            prompts: list[str | list[int]] = [messages if is_text else asked_in(messages)]
        elif body.prompt is not None:
            prompts = prompt_list(self._service, body.prompt)
        else:
            problem = "There is no prompt. Give `prompt`, `messages` or `input`."
            raise ApiError(400, problem, param="prompt")
        turn = self._service, self._threads, client
        ids = [await encode_in_turn(*turn, prompt) for prompt in prompts]
        paths = await self._router.route_all(served, [(each, path) for each in ids], client)
        for its_path in paths:
            self._metrics.prompts.labels(model.name, its_path).inc()
        if len(set(paths)) > 1:
            named = ", ".join(map(str, sorted(set(paths))))
            problem = f"These prompts go to several paths, {named}. Send each in its own request."
            raise ApiError(400, problem, param="prompt", code="several_paths")
        return paths[0], ids[0][: self._service.prefix_tokens].tobytes()


def _give_back(target: Target) -> None:
    target.server.num_open -= 1


def asked_in(messages: list[dict[str, Any]]) -> str:
    """The text by which a chat is routed. Parts that are no text, and messages of tools, pass."""
    texts: list[tuple[object, str]] = []
    for message in messages:
        content = message.get("content")
        parts = content if isinstance(content, list) else [{"text": content}]
        given = [part.get("text") for part in parts if isinstance(part, dict)]
        texts.append((message.get("role"), "".join(t for t in given if isinstance(t, str))))
    asked = routed_text(texts, is_latest=False)
    return "\n".join(text for _, text in texts if text) if asked is None else asked
