"""Sending an answer, whole or as server-sent events, to a client that may disconnect any time."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from dipaco.serving.http.answer import Answer, AnswerEvent
from dipaco.serving.http.errors import api_error_of
from dipaco.serving.http.protocol import StreamOptions
from dipaco.serving.http.responses import END, AnswerFormat, event_bytes, usage_of

# Tells proxies to forward each event at once and store none.
STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
Value = TypeVar("Value")


class ClientHungUp(Exception):
    """The client has disconnected."""


async def send_whole(
    request: Request, answer: Answer, answer_format: AnswerFormat
) -> msgspec.Struct:
    """All choices, once they are complete. Raises `ClientHungUp`, and the error of a choice."""
    try:
        choices = await while_connected(request, _collected(answer.events()))
        return answer_format.whole(choices, usage_of(answer))
    finally:
        answer.close()


async def send_stream(
    request: Request,
    answer: Answer,
    answer_format: AnswerFormat,
    options: StreamOptions | None,
    on_hang_up: Callable[[], object],
) -> Response:
    """A response that sends each event as it comes.

    It starts with the first event, so an error before that has its own status. Raises as
    `send_whole`.
    """
    events = answer.events()
    try:
        first = await while_connected(request, _next(events))
    except BaseException:
        answer.close()
        raise
    content = _server_sent(answer, first, events, answer_format, options)
    return ClosingStream(
        content, answer.close, on_hang_up, media_type="text/event-stream", headers=STREAM_HEADERS
    )


class ClosingStream(StreamingResponse):
    """Calls `close`, however it ends, also where its client has gone before it began."""

    def __init__(
        self,
        content: AsyncIterator[bytes],
        close: Callable[[], object],
        on_hang_up: Callable[[], object] = lambda: None,
        **options: Any,
    ):
        super().__init__(content, **options)
        self._close, self._on_hang_up = close, on_hang_up
        self._is_sent = False

    async def stream_response(self, send: Send) -> None:
        await super().stream_response(send)
        self._is_sent = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()
            if not self._is_sent:
                self._on_hang_up()


async def _server_sent(
    answer: Answer,
    first: list[AnswerEvent],
    events: AsyncIterator[list[AnswerEvent]],
    answer_format: AnswerFormat,
    options: StreamOptions | None,
) -> AsyncGenerator[bytes]:
    """The server-sent events. An error after the first one is sent as the last."""
    has_usage = bool(options and options.include_usage)
    has_usage_so_far = bool(has_usage and options and options.continuous_usage_stats)

    def event_of(batch: list[AnswerEvent]) -> bytes:
        chunk = answer_format.chunk(batch)
        if has_usage_so_far:
            chunk.usage = usage_of(answer)
        return event_bytes(chunk)

    if (opening := answer_format.opening(answer.num_choices)) is not None:
        yield event_bytes(opening)
    yield event_of(first)
    try:
        async for batch in events:
            yield event_of(batch)
    except Exception as error:
        yield b"data: " + api_error_of(error).body() + b"\n\n"
        return
    if has_usage:
        yield event_bytes(answer_format.closing(usage_of(answer)))
    yield END
    # If the client has just disconnected, the rest was sent without waiting. The pause notices it.
    await asyncio.sleep(0)


async def _collected(events: AsyncIterator[list[AnswerEvent]]) -> list[AnswerEvent]:
    """Every choice in one event, in order."""
    by_choice: dict[int, list[AnswerEvent]] = {}
    async for batch in events:
        for event in batch:
            by_choice.setdefault(event.index, []).append(event)
    return [
        of_choice[-1]._replace(
            text="".join(event.text for event in of_choice),
            tokens=[token for event in of_choice for token in event.tokens],
        )
        for _, of_choice in sorted(by_choice.items())
    ]


async def _next(events: AsyncIterator[list[AnswerEvent]]) -> list[AnswerEvent]:
    return await anext(events)


async def while_connected(request: Request, work: Coroutine[Any, Any, Value]) -> Value:
    """The result of the work, unless the client disconnects first. Raises `ClientHungUp`."""
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientHungUp()
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
