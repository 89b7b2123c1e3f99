"""The routes: who may ask, what is answered, and how it is said when something is wrong."""

import asyncio
import dataclasses
import hmac
import importlib.resources
import time
from collections.abc import Awaitable, Callable

import msgspec
import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dipaco.model.config import num_parameters, part_parameters
from dipaco.serving.errors import LoopStopping
from dipaco.serving.http import openapi
from dipaco.serving.http.admission import RequestAdmission
from dipaco.serving.http.answer import Answer
from dipaco.serving.http.chat_template import ChatTemplate
from dipaco.serving.http.errors import ApiError, api_error_of
from dipaco.serving.http.metrics import Metrics
from dipaco.serving.http.protocol import (
    ChatRequest,
    CompletionRequest,
    HealthReply,
    LevelCard,
    ModelCard,
    ModelEntry,
    ModelList,
    PathScore,
    RouteRequest,
    RouteResponse,
)
from dipaco.serving.http.requests import (
    ParsedRequest,
    encode,
    parse_chat,
    parse_completion,
    read_body,
)
from dipaco.serving.http.responses import AnswerFormat, ChatFormat, CompletionFormat
from dipaco.serving.http.streaming import ClientHungUp, streamed, whole
from dipaco.serving.service import Service

JSON = "application/json"
LEFT = 499  # what a log says of a client that left; nobody is there to read it
# The page is one file that talks to this server only.
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; connect-src 'self'; img-src data:; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class HttpSettings:
    """What is of HTTP alone."""

    api_keys: tuple[str, ...] = ()  # one of them must come with each request; () = nobody is asked
    max_body_bytes: int = 4 << 20  # of one request
    chat: ChatTemplate | None = None  # None = the tokenizer has no template


def make_app(
    service: Service, metrics: Metrics | None = None, settings: HttpSettings | None = None
) -> Starlette:
    """The application. Starting and stopping it starts and stops nothing: the service is given."""
    return _Application(service, metrics or Metrics(), settings or HttpSettings()).starlette


class _Application:
    """What the routes share."""

    def __init__(self, service: Service, metrics: Metrics, settings: HttpSettings):
        self._service, self._metrics, self._settings = service, metrics, settings
        self._admission = RequestAdmission(service)
        metrics.watch(service)
        self._keys = [key.encode() for key in settings.api_keys]
        self._began = int(time.time())
        self._document = msgspec.json.encode(openapi.document(bool(self._keys)))
        page = importlib.resources.files("dipaco.serving.http").joinpath("index.html")
        self._page = page.read_bytes()
        # (path, method, what answers, whether a key is asked for)
        routes = [
            ("/v1/completions", "POST", self._completions, True),
            ("/v1/chat/completions", "POST", self._chat_completions, True),
            ("/v1/route", "POST", self._route, True),
            ("/v1/models", "GET", self._models, True),
            ("/v1/models/{name:path}", "GET", self._model, True),
            ("/healthz", "GET", self._healthz, False),
            ("/readyz", "GET", self._readyz, False),
            ("/metrics", "GET", self._told_metrics, False),
            ("/openapi.json", "GET", self._told_document, False),
            ("/", "GET", self._told_page, False),
        ]
        self.starlette = Starlette(
            routes=[
                Route(path, self._guarded(path, answer, needs_key), methods=[method])
                for path, method, answer, needs_key in routes
            ],
            exception_handlers={HTTPException: self._no_route},
        )

    def _guarded(
        self,
        path: str,
        answer: Callable[[Request], Awaitable[Response]],
        needs_key: bool,
    ) -> Callable[[Request], Awaitable[Response]]:
        """Asks for a key, counts, and turns errors into answers."""

        async def guarded(request: Request) -> Response:
            try:
                if needs_key:
                    self._check_key(request)
                response = await answer(request)
            except ClientHungUp:
                self._metrics.hang_ups.inc()
                response = Response(status_code=LEFT)
            except Exception as error:
                response = _refused(error)
            except asyncio.CancelledError:  # its time was over before it had been read
                response = _refused(LoopStopping())
            self._metrics.answers.labels(path, response.status_code).inc()
            return response

        return guarded

    def _check_key(self, request: Request) -> None:
        """Raises `ApiError`. Takes as long for a wrong key as for a right one."""
        if not self._keys:
            return
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        given = key.strip(" \t").encode("latin-1")  # as headers come: byte for byte
        matches = [hmac.compare_digest(given, known) for known in self._keys]
        if scheme.lower() != "bearer" or not any(matches):
            raise ApiError(
                401,
                "Incorrect API key provided. Send one that is known: `Authorization: Bearer KEY`.",
                code="invalid_api_key",
            )

    async def _no_route(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        what = {
            404: f"There is nothing at {request.url.path[:200]}. See /openapi.json.",
            405: f"{request.method} is not for {request.url.path[:200]}. See /openapi.json.",
        }.get(error.status_code, error.detail)
        response = _refused(ApiError(error.status_code, what))
        response.headers.update(error.headers or {})
        self._metrics.answers.labels("other", error.status_code).inc()
        return response

    # --- completions ---------------------------------------------------------------------------

    async def _completions(self, request: Request) -> Response:
        body = await read_body(request, self._settings.max_body_bytes, CompletionRequest)
        asked = await self._timed(parse_completion, self._service, body)
        shape = CompletionFormat(self._service.name, asked.served.digest, body.logprobs)
        return await self._answered(request, body, asked, shape)

    async def _chat_completions(self, request: Request) -> Response:
        body = await read_body(request, self._settings.max_body_bytes, ChatRequest)
        asked = await self._timed(parse_chat, self._service, self._settings.chat, body)
        shape = ChatFormat(self._service.name, asked.served.digest, bool(body.logprobs))
        return await self._answered(request, body, asked, shape)

    async def _timed(
        self, understand: Callable[..., ParsedRequest], *arguments: object
    ) -> ParsedRequest:
        with self._metrics.routing.time():
            asked = await asyncio.to_thread(understand, *arguments)
        for prompt in asked.prompts:
            self._metrics.prompts.labels(prompt.choice.path).inc()
        return asked

    async def _answered(
        self,
        request: Request,
        body: CompletionRequest | ChatRequest,
        asked: ParsedRequest,
        shape: AnswerFormat,
    ) -> Response:
        answer = Answer(self._service, self._admission, self._metrics, *asked)
        if body.stream:
            has_usage = body.stream_options is not None and body.stream_options.include_usage
            return await streamed(request, answer, shape, has_usage, self._metrics.hang_ups.inc)
        return _json(await whole(request, answer, shape))

    # --- what is our own -----------------------------------------------------------------------

    async def _route(self, request: Request) -> Response:
        body = await read_body(request, self._settings.max_body_bytes, RouteRequest)
        return _json(await asyncio.to_thread(self._routed, body))

    def _routed(self, body: RouteRequest) -> RouteResponse:
        started = time.monotonic()
        served = self._service.releases.now
        ids = encode(self._service, body.prompt)
        choice = self._service.choose(served, ids)
        scores = None
        if choice.scores is not None:
            best = np.argsort(-choice.scores, kind="stable").tolist()
            scores = [PathScore(path=path, score=float(choice.scores[path])) for path in best]
        return RouteResponse(
            path=choice.path,
            modules=list(choice.modules),
            scores=scores,
            prompt_tokens=len(ids),
            routed_tokens=min(len(ids), self._service.prefix_tokens),
            release=served.digest,
            seconds=time.monotonic() - started,
        )

    async def _models(self, request: Request) -> Response:
        return _json(ModelList(object="list", data=[self._described()]))

    async def _model(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name != self._service.name:
            raise ApiError(
                404,
                f"The model `{name[:100]}` does not exist. This server has `{self._service.name}`.",
                param="model",
                code="model_not_found",
            )
        return _json(self._described())

    def _described(self) -> ModelEntry:
        service, served = self._service, self._service.releases.now
        topology, per_part = service.topology, part_parameters(service.model)
        total = sum(per_part[part] for m in topology.modules for part in topology.parts_of(m))
        return ModelEntry(
            id=service.name,
            object="model",
            created=self._began,
            owned_by="dipaco",
            dipaco=ModelCard(
                arm=served.release.arm,
                phase=served.release.phase,
                release=served.digest,
                num_paths=topology.num_paths,
                context=service.model.max_length,
                prefix_tokens=service.prefix_tokens,
                parameters_per_path=num_parameters(service.model),
                parameters_total=total,
                has_chat=self._settings.chat is not None,
                levels=[
                    LevelCard(
                        name=level.name,
                        parts=list(level.parts),
                        modules=[str(m) for m in topology.modules if m.level == level.name],
                    )
                    for level in topology.levels
                    if level.parts
                ],
            ),
        )

    async def _healthz(self, request: Request) -> Response:
        is_well = self._service.loop_is_alive
        status = "ok" if is_well else "the serving loop has ended"
        return _json(HealthReply(status=status), 200 if is_well else 503)

    async def _readyz(self, request: Request) -> Response:
        served = self._service.releases.now
        broken = {
            str(path): problem
            for path in range(served.num_paths)
            if (problem := self._service.problem_of(served, path))
        }
        is_ready = self._service.loop_is_alive and len(broken) < served.num_paths
        status = "ready" if is_ready else "no path can be served"
        detail = {"release_phase": served.release.phase, "paths_not_whole": broken}
        return _json(HealthReply(status=status, detail=detail), 200 if is_ready else 503)

    async def _told_metrics(self, request: Request) -> Response:
        return Response(self._metrics.text(), media_type="text/plain; version=0.0.4")

    async def _told_document(self, request: Request) -> Response:
        return Response(self._document, media_type=JSON)

    async def _told_page(self, request: Request) -> Response:
        return Response(self._page, media_type="text/html", headers=PAGE_HEADERS)


def _json(content: msgspec.Struct, status: int = 200) -> Response:
    return Response(msgspec.json.encode(content), status, media_type=JSON)


def _refused(error: Exception) -> Response:
    refusal = api_error_of(error)
    return Response(refusal.body(), refusal.status, refusal.headers, media_type=JSON)
