"""Sending an answer, whole or as server-sent events, to a client that may leave at any moment."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from dipaco.serving.http.answer import Answer, AnswerEvent
from dipaco.serving.http.errors import api_error_of
from dipaco.serving.http.responses import END, AnswerFormat, event_bytes, usage_of

# A proxy must pass each event on, and keep none.
STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
Value = TypeVar("Value")


class ClientHungUp(Exception):
    """The client has left."""


async def whole(request: Request, answer: Answer, shape: AnswerFormat) -> msgspec.Struct:
    """All choices, when they are over. Raises `ClientHungUp`, and what ended a choice."""
    try:
        choices = await _while_connected(request, _gathered(answer.events()))
        return shape.whole(choices, usage_of(answer))
    finally:
        answer.close()


async def streamed(
    request: Request,
    answer: Answer,
    shape: AnswerFormat,
    has_usage: bool,
    on_hang_up: Callable[[], object],
) -> Response:
    """A response that sends each piece as it comes.

    It begins with the first one: until then, an error has a status of its own. Raises as `whole`.
    """
    events = answer.events()
    try:
        first = await _while_connected(request, _next(events))
    except BaseException:
        answer.close()
        raise
    return _EventStream(_written(answer, first, events, shape, has_usage), answer, on_hang_up)


class _EventStream(StreamingResponse):
    """Frees what its answer holds, however it ends."""

    def __init__(
        self, content: AsyncIterator[bytes], answer: Answer, on_hang_up: Callable[[], object]
    ):
        super().__init__(content, media_type="text/event-stream", headers=STREAM_HEADERS)
        self._answer, self._on_hang_up = answer, on_hang_up
        self._is_sent = False

    async def stream_response(self, send: Send) -> None:
        await super().stream_response(send)
        self._is_sent = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._answer.close()
            if not self._is_sent:
                self._on_hang_up()


async def _written(
    answer: Answer,
    first: list[AnswerEvent],
    events: AsyncIterator[list[AnswerEvent]],
    shape: AnswerFormat,
    has_usage: bool,
) -> AsyncGenerator[bytes]:
    """Server-sent events; an error that comes late is the last of them."""
    if (opening := shape.opening(answer.num_choices)) is not None:
        yield event_bytes(opening)
    yield event_bytes(shape.chunk(first))
    try:
        async for some in events:
            yield event_bytes(shape.chunk(some))
    except Exception as error:
        yield b"data: " + api_error_of(error).body() + b"\n\n"
        return
    if has_usage:
        yield event_bytes(shape.closing(usage_of(answer)))
    yield END
    # To a client that has just left, the rest was sent at once, to nobody: now we hear of it.
    await asyncio.sleep(0)


async def _gathered(events: AsyncIterator[list[AnswerEvent]]) -> list[AnswerEvent]:
    """Every choice, whole, in order."""
    by_choice: dict[int, list[AnswerEvent]] = {}
    async for some in events:
        for event in some:
            by_choice.setdefault(event.index, []).append(event)
    return [
        told[-1]._replace(
            text="".join(event.text for event in told),
            tokens=[token for event in told for token in event.tokens],
        )
        for _, told in sorted(by_choice.items())
    ]


async def _next(events: AsyncIterator[list[AnswerEvent]]) -> list[AnswerEvent]:
    return await anext(events)


async def _while_connected(request: Request, wanted: Coroutine[Any, Any, Value]) -> Value:
    """What is wanted, unless the client leaves first. Raises `ClientHungUp`."""
    making = asyncio.create_task(wanted)
    leaving = asyncio.create_task(_has_left(request))
    try:
        await asyncio.wait({making, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not making.done():
            raise ClientHungUp()
        return making.result()
    finally:
        making.cancel()
        leaving.cancel()


async def _has_left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
