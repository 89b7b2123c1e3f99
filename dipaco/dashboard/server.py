"""The HTTP server of the page: the page, the recording, its changes, and texts. Of a sweep: its
page, and below it the same of each run.
"""

import asyncio
import hmac
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.types import Receive, Scope, Send

from dipaco.dashboard.page import page
from dipaco.dashboard.sweep import SweepWatcher
from dipaco.dashboard.watcher import Watcher
from dipaco.errors import DipacoError
from dipaco.serving.fairness import ClientPlaces, FairThreads
from dipaco.serving.http.responses import STREAM_HEADERS, ClosingStream

JSON = "application/json"
# The page is one file, with its script and style inside. It connects to this server only.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}
BEAT_SECONDS = 15.0  # time between two signs of life to a page without news
MOST_STREAMS = 256  # at once; clients share them


def make_app(watcher: Watcher | SweepWatcher, api_keys: tuple[str, ...] = ()) -> Starlette:
    """The application. It neither starts nor stops the watcher.

    Args:
      watcher: watches the run or the sweep.
      api_keys: reading anything of the run needs one of them, as `Authorization: Bearer KEY`; () =
        it needs none.
    """
    keys = [key.encode() for key in api_keys]
    is_sweep = isinstance(watcher, SweepWatcher)
    pages = _SweepPages(watcher, keys) if is_sweep else _RunPages(watcher, keys)
    return Starlette(routes=pages.routes)


class _Pages:
    """The page and its recording."""

    def __init__(self, watcher: Any, keys: list[bytes]):
        self._watcher, self._keys, self._page = watcher, keys, page()
        self._threads = FairThreads(8, "pages")
        self.routes: list[BaseRoute] = [
            Route("/", self._index),
            Route("/recording", self._with_key(self._recording)),
        ]

    def _with_key(
        self, answer: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def guarded(request: Request) -> Response:
            client = f"address {request.client.host}" if request.client else ""
            scheme, _, key = request.headers.get("authorization", "").partition(" ")
            given = key.strip(" \t").encode("latin-1")  # the header's bytes
            known = [hmac.compare_digest(given, each) for each in self._keys]
            if self._keys and not (scheme.lower() == "bearer" and any(known)):
                return _problem("This dashboard needs an API key.", 401)
            request.state.client = f"key {known.index(True)}" if self._keys else client
            try:
                return await answer(request)
            except DipacoError as error:
                return _problem(f"{type(error).__name__}: {error}", 503)
            except asyncio.CancelledError:  # the server ends before the answer
                return _problem("The dashboard is stopping. Try again in a moment.", 503)

        return guarded

    async def _index(self, request: Request) -> Response:
        return Response(self._page, media_type="text/html", headers=HEADERS)

    async def _recording(self, request: Request) -> Response:
        try:
            content = await self._threads.run(request.state.client, self._watcher.recording)
        except DipacoError as error:  # the page shows it, and this server has not failed
            return _json({"problem": f"{type(error).__name__}: {error}"})
        return Response(content, media_type=JSON)


class _SweepPages(_Pages):
    """The page of a sweep, and below it its runs' pages. A run is watched once it is opened."""

    def __init__(self, watcher: SweepWatcher, keys: list[bytes]):
        super().__init__(watcher, keys)
        self._runs: dict[Watcher, Router] = {}
        self.routes.append(Mount("/rows/{row}/{seed}", app=self._run))

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        watcher = await asyncio.to_thread(self._watcher.watcher_of, **scope["path_params"])
        if watcher is None:
            await _problem("This sweep has no such run.", 404)(scope, receive, send)
            return
        if watcher not in self._runs:
            self._runs[watcher] = Router(_RunPages(watcher, self._keys).routes)
        await self._runs[watcher](scope, receive, send)


class _RunPages(_Pages):
    """The page of a run, its changes and its texts."""

    def __init__(self, watcher: Watcher, keys: list[bytes]):
        super().__init__(watcher, keys)
        self._streams = ClientPlaces()
        self.routes += [
            Route("/changes", self._with_key(self._changes)),
            Route("/texts", self._with_key(self._texts)),
        ]

    async def _texts(self, request: Request) -> Response:
        table = await self._threads.run(request.state.client, self._watcher.table)
        return Response(table, media_type=JSON)

    async def _changes(self, request: Request) -> Response:
        """Server-sent events: one for each difference, and `stale` if the page must begin again."""
        try:
            number = int(request.query_params.get("after", "0"))
        except ValueError:
            return _problem("`after` is a number.", 400)
        client = request.state.client
        if not self._streams.take(client, 1, MOST_STREAMS):
            answer = _problem("There are too many open pages. Try again in a moment.", 429)
            answer.headers["Retry-After"] = "1"
            return answer
        return ClosingStream(
            self._events(number),
            lambda: self._streams.give_back(client),
            media_type="text/event-stream",
            headers=STREAM_HEADERS,
        )

    async def _events(self, number: int) -> AsyncIterator[bytes]:
        loop, woken = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(woken.set)

        with self._watcher.opened(wake):
            while not self._watcher.has_finished:
                woken.clear()
                kept = self._watcher.after(number)
                if kept is None:
                    yield b"event: stale\ndata: {}\n\n"
                    return
                for number, difference in kept:
                    yield b"id: %d\ndata: %b\n\n" % (number, difference)
                if not kept:
                    try:
                        await asyncio.wait_for(woken.wait(), BEAT_SECONDS)
                    except TimeoutError:
                        yield b": nothing new\n\n"


def _json(value: Any) -> Response:
    return Response(json.dumps(value), media_type=JSON)


def _problem(sentence: str, status: int) -> Response:
    content = json.dumps({"error": {"message": sentence}})
    return Response(content, status, media_type=JSON)
