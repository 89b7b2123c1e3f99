"""The routes: keys, responses, and errors as responses."""

import asyncio
import dataclasses
import functools
import hmac
import re
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import dipaco
from dipaco.serving.dispatch import API_KEY, PromptRouter
from dipaco.serving.errors import LoopStopping
from dipaco.serving.fairness import FairThreads
from dipaco.serving.http import cards, openapi, responses
from dipaco.serving.http import protocol as p
from dipaco.serving.http.answer import Answers
from dipaco.serving.http.chat_template import ChatTemplate
from dipaco.serving.http.errors import ApiError, api_error_of
from dipaco.serving.http.metrics import Metrics
from dipaco.serving.http.requests import (
    Body,
    ParsedRequest,
    encode_in_turn,
    parse_chat,
    parse_completion,
    read_body,
)
from dipaco.serving.http.responses_api import ResponsesFormat, ResponsesRequest, chat_of
from dipaco.serving.http.structured import SchemaCompiler
from dipaco.serving.http.tokenizing import DetokenizeRequest, TokenizeRequest, detokenize, tokenize
from dipaco.serving.models import ServedModel
from dipaco.serving.path_admission import PathAdmission
from dipaco.serving.service import Service

if TYPE_CHECKING:
    from dipaco.serving.http.forward import Forwarder
    from dipaco.serving.upstreams import Upstreams

Completable = TypeVar("Completable", bound=p.CommonRequest)
JSON = "application/json"
KEY = "dipaco.key"  # key in a request's scope: the number of its API key
REQUEST_THREADS = 8  # they parse, and score prefixes under paths
REQUEST_ID = "X-Request-Id"
MAX_IGNORED_TOLD = 100  # unknown fields of lenient requests that the log names
CLIENT_CLOSED_REQUEST = 499  # nginx's status for a client that disconnected, in metrics only


@dataclasses.dataclass(frozen=True, kw_only=True)
class HttpSettings:
    api_keys: tuple[str, ...] = ()  # each request must send one. () = no key is needed
    max_body_bytes: int = 4 << 20  # bytes of one request
    chat: ChatTemplate | None = None  # None = messages are read as one text
    cors_origins: tuple[str, ...] = ()  # sites whose pages may ask this server
    say: Callable[[str], object] | None = None  # called with a line for each answer
    upstreams: "Upstreams | None" = None  # they answer what is routed here. None = this process
    is_lenient: bool = False  # unknown fields of requests are ignored, and not refused


def make_app(
    service: Service, metrics: Metrics | None = None, settings: HttpSettings | None = None
) -> Starlette:
    """The application. It neither starts nor stops the service."""
    return _Application(service, metrics or Metrics(), settings or HttpSettings()).starlette


class RequestIds:
    """Gives each request an id, its own `X-Request-Id` if it has one. The answer has it, and an
    upstream that the request is sent on to. One line for each request says how it was answered.
    """

    def __init__(self, app: ASGIApp, say: Callable[[str], object] | None):
        self._app, self._say = app, say

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        headers, started, status = MutableHeaders(scope=scope), time.monotonic(), 0
        if not re.fullmatch(r"[\w.:-]{1,100}", headers.get(REQUEST_ID, "")):
            headers[REQUEST_ID] = uuid.uuid4().hex
        name = headers[REQUEST_ID]

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[REQUEST_ID] = name
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        finally:
            if self._say is not None:
                client, path = (scope.get("client") or ("-",))[0], scope["path"][:200]
                took = f"{1000 * (time.monotonic() - started):.1f} ms"
                self._say(f"{name} {client} {scope['method']} {ascii(path)[1:-1]} {status} {took}")


class _Application:
    """The routes and their shared state."""

    def __init__(self, service: Service, metrics: Metrics, settings: HttpSettings):
        self._service, self._metrics, self._settings = service, metrics, settings
        self._chat = settings.chat or ChatTemplate(None, service.tokenizer.file)
        self._paths = PathAdmission(service.cache, service.health.problem_of)
        self._threads = FairThreads(REQUEST_THREADS, "requests")
        self._router = PromptRouter(service.dispatcher, self._paths, self._threads)
        self._answers = Answers(service, self._paths, self._router, metrics)
        self._schemas = SchemaCompiler(service.grammars)
        self._forwarder: Forwarder | None = None
        if settings.upstreams is not None:
            from dipaco.serving.http import forward

            shared = self._answers.places, self._router, self._threads, metrics
            self._forwarder = forward.Forwarder(service, settings.upstreams, *shared)
        metrics.watch(service)
        self._keys = [key.encode() for key in settings.api_keys]
        self._ignored: set[str] = set()
        self._started_seconds = int(time.time())
        document = openapi.document(bool(self._keys))
        self._document, self._docs = msgspec.json.encode(document), openapi.page(document)
        completion = functools.partial(parse_completion, service)
        chat = functools.partial(parse_chat, service, self._chat)
        asked: dict[str, tuple[Any, ...]] = {  # the first arguments of `_answered`
            "/v1/completions": (p.CompletionRequest, completion, responses.CompletionFormat),
            "/v1/chat/completions": (p.ChatRequest, chat, responses.ChatFormat),
            "/v1/responses": (ResponsesRequest, lambda body: chat(chat_of(body)), ResponsesFormat),
        }
        posts = {path: functools.partial(self._answered, *how) for path, how in asked.items()} | {
            "/v1/route": self._route,
            "/tokenize": self._in_thread(TokenizeRequest, tokenize, service, self._chat),
            "/detokenize": self._in_thread(DetokenizeRequest, detokenize, service),
        }
        # (route, method, handler, whether it needs a key)
        routes = [
            *((path, "POST", answer, True) for path, answer in posts.items()),
            ("/v1/models", "GET", self._models, True),
            ("/v1/paths", "GET", self._path_list, True),
            ("/v1/models/{name:path}", "GET", self._model, True),
            ("/healthz", "GET", self._healthz, False),
            ("/health", "GET", self._healthz, False),
            ("/version", "GET", self._version, False),
            ("/readyz", "GET", self._readyz, False),
            ("/metrics", "GET", self._metrics_text, False),
            ("/openapi.json", "GET", self._openapi, False),
            ("/docs", "GET", self._docs_page, False),
            *((path, "GET", self._page, False) for path in cards.PAGE),
        ]
        self.starlette = Starlette(
            routes=[
                Route(address, self._guarded(path, answer, needs_key), methods=[method])
                for path, method, answer, needs_key in routes
                for address in (path, *([] if path in cards.PAGE else [f"{path}/"]))
            ],
            exception_handlers={HTTPException: self._no_route},
            middleware=self._middleware(settings),
        )
        # Starlette would redirect from or to a `/` at the end, behind TLS to plain HTTP.
        self.starlette.router.redirect_slashes = False

    @staticmethod
    def _middleware(settings: HttpSettings) -> list[Middleware]:
        chosen = [Middleware(RequestIds, say=settings.say)]
        if settings.cors_origins:
            pages = Middleware(
                CORSMiddleware,
                allow_origins=settings.cors_origins,
                allow_methods=["*"],
                allow_headers=["*"],
                expose_headers=["Retry-After", REQUEST_ID],
            )
            chosen.append(pages)
        return chosen

    def _guarded(
        self, path: str, answer: Callable[[Request], Awaitable[Response]], needs_key: bool
    ) -> Callable[[Request], Awaitable[Response]]:
        """Checks the key, counts the response, and turns errors into responses."""

        async def guarded(request: Request) -> Response:
            if (upstreams := self._settings.upstreams) is not None:
                upstreams.open()
            try:
                if needs_key:
                    self._check_key(request)
                response = await answer(request)
            except responses.ClientHungUp:
                self._metrics.hang_ups.inc()
                response = Response(status_code=CLIENT_CLOSED_REQUEST)
            except Exception as error:
                response = _error_response(error)
            except asyncio.CancelledError:  # the drain time was over before its answer began
                response = _error_response(LoopStopping())
            self._metrics.answers.labels(path, response.status_code).inc()
            return response

        return guarded

    def _check_key(self, request: Request) -> None:
        """Raises `ApiError`. Takes as long for a wrong key as for a right one."""
        if not self._keys:
            return
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        given = key.strip(" \t").encode("latin-1")  # the header's bytes
        matches = [hmac.compare_digest(given, known) for known in self._keys]
        if scheme.lower() != "bearer" or not any(matches):
            problem = "Incorrect API key provided. Send a known one: `Authorization: Bearer KEY`."
            raise ApiError(401, problem, code="invalid_api_key")
        request.scope[KEY] = f"{API_KEY}{matches.index(True)}"

    async def _no_route(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        message = {
            404: f"There is nothing at {request.url.path[:200]}. See /openapi.json.",
            405: f"{request.method} is not allowed at {request.url.path[:200]}. See /openapi.json.",
        }.get(error.status_code, error.detail)
        response = _error_response(ApiError(error.status_code, message))
        response.headers.update(error.headers or {})
        self._metrics.answers.labels("other", error.status_code).inc()
        return response

    async def _body(self, request: Request, kind: type[Body]) -> Body:
        ignore = self._ignore if self._settings.is_lenient else None
        return await read_body(request, self._settings.max_body_bytes, kind, ignore)

    def _ignore(self, field: str) -> None:
        """Tells the operator of a field that is ignored, once, and of so many at most."""
        if field not in self._ignored and len(self._ignored) < MAX_IGNORED_TOLD:
            self._ignored.add(field)
            self._service.say(f"requests have {field[:100]!a}, which is ignored (`--lenient`)")

    # --- completions ---------------------------------------------------------------------------

    async def _answered(
        self,
        kind: type[Completable],
        parse: Callable[[Completable], ParsedRequest],
        format_of: Callable[[Completable, str], responses.AnswerFormat],
        request: Request,
    ) -> Response:
        """Answers a request here, or sends it on."""
        client = _client_of(request)
        if self._forwarder is not None:
            return await self._forwarder.answer(request, client, self._settings.max_body_bytes)
        body = await self._body(request, kind)
        came_seconds = time.monotonic()
        parsed = await self._parsed(request, client, functools.partial(parse, body))
        begun = self._answers.begin(parsed, client, came_seconds)
        answer = await responses.while_connected(request, begun)
        answer_format = format_of(body, parsed.served.digest)
        if body.stream:
            return await responses.send_stream(
                request, answer, answer_format, body.stream_options, self._metrics.hang_ups.inc
            )
        return _json(await responses.send_whole(request, answer, answer_format))

    async def _parsed(
        self, request: Request, client: str, parse: Callable[[], ParsedRequest]
    ) -> ParsedRequest:
        with self._metrics.parsing.time():
            parsed = await self._threads.run(client, parse)
            grammar = None
            if parsed.schema is not None:
                compiled = self._schemas.compiled(parsed.schema, client)
                grammar = await responses.while_connected(request, compiled)
        # One key learns nothing of another's prompts from times.
        salt = f"{request.scope.get(KEY, '')} {parsed.params.cache_salt}"
        params = dataclasses.replace(parsed.params, grammar=grammar, cache_salt=salt)
        return parsed._replace(params=params)

    # --- our own routes ------------------------------------------------------------------------

    async def _route(self, request: Request) -> Response:
        body = await self._body(request, p.RouteRequest)
        started, client = time.monotonic(), _client_of(request)
        model, path = self._service.models.asked(body.model, None)
        served = model.releases.current
        ids = await encode_in_turn(self._service, self._threads, client, body.prompt)
        with self._answers.places.taken(client, 1, self._service.loop.capacity):
            routed = self._router.route(served, ids, path, client)
            choice = await responses.while_connected(request, routed)
        seconds = time.monotonic() - started
        return _json(cards.route_response(self._service, served, ids, choice, seconds))

    def _in_thread(self, kind: type[Body], function: Callable[..., msgspec.Struct], *first: Any):
        """Answers what a function makes of these and a body, in the client's turn."""

        async def computed(request: Request) -> Response:
            body = await self._body(request, kind)
            return _json(await self._threads.run(_client_of(request), function, *first, body))

        return computed

    async def _models(self, request: Request) -> Response:
        entries = [self._model_entry(model) for model in self._service.models]
        if (here := self._service.settings.paths) is not None:  # a cell's paths are its models
            (entry,), main = entries, self._service.models.main
            entries = [msgspec.structs.replace(entry, id=main.path_name(path)) for path in here]
        return _json(p.ModelList(object="list", data=entries))

    async def _model(self, request: Request) -> Response:
        name = request.path_params["name"].removesuffix("/")
        model, path = self._service.models.find(name)
        if path is not None:
            model.releases.current.modules_of(path)
        return _json(msgspec.structs.replace(self._model_entry(model), id=name))

    async def _path_list(self, request: Request) -> Response:
        model, _ = self._service.models.find(request.query_params.get("model"))
        return _json(cards.path_list(self._service, model))

    def _model_entry(self, model: ServedModel) -> p.ModelEntry:
        return cards.model_entry(self._service, model, self._started_seconds)

    async def _healthz(self, request: Request) -> Response:
        problem = self._service.loop.problem
        return _json(p.HealthReply(status=problem or "ok"), 503 if problem else 200)

    async def _version(self, request: Request) -> Response:
        return _json(p.VersionReply(version=dipaco.__version__))

    async def _readyz(self, request: Request) -> Response:
        reply = cards.readiness(self._service, self._paths)
        return _json(reply, 200 if reply.status == "ready" else 503)

    async def _metrics_text(self, request: Request) -> Response:
        return Response(self._metrics.text(), media_type="text/plain; version=0.0.4")

    async def _openapi(self, request: Request) -> Response:
        return Response(self._document, media_type=JSON)

    async def _docs_page(self, request: Request) -> Response:
        return Response(self._docs, media_type="text/html", headers=cards.PAGE_HEADERS)

    async def _page(self, request: Request) -> Response:
        return cards.page_file(request.url.path)


def _client_of(request: Request) -> str:
    """The client that asks: an API key, else a connection."""
    if key := request.scope.get(KEY):
        return key
    return "connection " + ":".join(map(str, request.client or ()))


def _json(content: msgspec.Struct, status: int = 200) -> Response:
    return Response(msgspec.json.encode(content), status, media_type=JSON)


def _error_response(error: Exception) -> Response:
    api_error = api_error_of(error)
    return Response(api_error.body(), api_error.status, api_error.headers, media_type=JSON)
