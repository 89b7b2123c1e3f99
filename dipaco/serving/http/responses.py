"""An answer as a completion or a chat, whole or as the events of a stream."""

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any, Protocol, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from dipaco.serving.http import protocol as p
from dipaco.serving.http.answer import Answer, AnswerEvent, joined
from dipaco.serving.http.errors import api_error_of
from dipaco.serving.text import WrittenToken, shown

END = b"data: [DONE]\n\n"
Events = list[AnswerEvent]  # those that came together
Later = AsyncIterator[Events]
Sent = AsyncGenerator[bytes]


class AnswerFormat(Protocol):
    """The format of an answer for one endpoint."""

    def whole(self, choices: Events, usage: p.Usage) -> msgspec.Struct: ...

    def server_sent(
        self, answer: Answer, first: Events, later: Later, wanted: p.StreamOptions
    ) -> Sent:
        """The server-sent events. An error after the first one is sent as the last."""


class _ChunkFormat(AnswerFormat, Protocol):
    """A stream is chunks of text, and ends with a mark."""

    def opening(self, num_choices: int) -> msgspec.Struct | None: ...
    def chunk(self, events: Events, usage: p.Usage | None = None) -> p.Completion | p.ChatChunk: ...

    async def server_sent(
        self, answer: Answer, first: Events, later: Later, wanted: p.StreamOptions
    ) -> Sent:
        has_usage_so_far = wanted.include_usage and wanted.continuous_usage_stats

        def event_of(batch: Events) -> bytes:
            return event_bytes(self.chunk(batch, usage_of(answer) if has_usage_so_far else None))

        if (opening := self.opening(answer.num_choices)) is not None:
            yield event_bytes(opening)
        yield event_of(first)
        try:
            async for batch in later:
                yield event_of(batch)
        except Exception as error:
            yield b"data: " + api_error_of(error).body() + b"\n\n"
            return
        if wanted.include_usage:
            yield event_bytes(self.chunk([], usage_of(answer)))
        yield END
        # A client that has just gone was sent the rest without waiting. The pause notices it.
        await asyncio.sleep(0)


class CompletionFormat(_ChunkFormat):
    """/v1/completions."""

    def __init__(self, body: p.CompletionRequest, release: str):
        self._head = _head("cmpl", body.model, release)
        self._num_logprobs = body.logprobs

    def opening(self, num_choices: int) -> None:
        """A completion starts with its first text."""

    def chunk(self, events: Events, usage: p.Usage | None = None) -> p.Completion:
        choices = [
            p.CompletionChoice(
                index=event.index,
                text=event.text,
                logprobs=self._logprobs(event.tokens),
                finish_reason=event.finish_reason,
                path=event.path,
            )
            for event in events
        ]
        return p.Completion(object="text_completion", choices=choices, usage=usage, **self._head)

    def whole(self, choices: Events, usage: p.Usage) -> p.Completion:
        return self.chunk(choices, usage)

    def _logprobs(self, tokens: list[WrittenToken]) -> p.CompletionLogprobs | None:
        if self._num_logprobs is None:
            return None
        tops = [_tops(token) for token in tokens] if self._num_logprobs else None
        return p.CompletionLogprobs(
            tokens=[shown(token.text) for token in tokens],
            token_logprobs=[token.logprob for token in tokens],
            top_logprobs=tops,
            text_offset=[token.offset for token in tokens],
        )


def _tops(token: WrittenToken) -> dict[str, float] | None:
    """The likeliest and, as OpenAI does, the token itself. None for the first of a prompt."""
    if token.logprob is None:
        return None
    tops = {shown(text): logprob for text, logprob in reversed(token.top)}
    return {shown(token.text): token.logprob, **dict(reversed(tops.items()))}


class ChatFormat(_ChunkFormat):
    """/v1/chat/completions."""

    def __init__(self, body: p.ChatRequest, release: str):
        self._head = _head("chatcmpl", body.model, release)
        self._has_logprobs = bool(body.logprobs)

    def opening(self, num_choices: int) -> p.ChatChunk:
        """The role, before any text."""
        delta = p.AssistantMessage(role="assistant", content="")
        rest: dict[str, Any] = dict.fromkeys(("logprobs", "finish_reason", "path"))
        choices = [p.ChatChunkChoice(index=i, delta=delta, **rest) for i in range(num_choices)]
        return self._chunk(choices)

    def chunk(self, events: Events, usage: p.Usage | None = None) -> p.ChatChunk:
        deltas = [p.AssistantMessage(content=event.text or None) for event in events]
        choices = zip(deltas, events, strict=True)
        return self._chunk([p.ChatChunkChoice(delta=d, **self._of(e)) for d, e in choices], usage)

    def whole(self, choices: Events, usage: p.Usage) -> p.ChatCompletion:
        messages = [
            p.ChatChoice(
                message=p.AssistantMessage(role="assistant", content=event.text), **self._of(event)
            )
            for event in choices
        ]
        return p.ChatCompletion(
            object="chat.completion", choices=messages, usage=usage, **self._head
        )

    def _chunk(self, deltas: list[p.ChatChunkChoice], usage: p.Usage | None = None) -> p.ChatChunk:
        kind = "chat.completion.chunk"
        return p.ChatChunk(object=kind, choices=deltas, usage=usage, **self._head)

    def _of(self, event: AnswerEvent) -> dict[str, Any]:
        return {
            "index": event.index,
            "logprobs": self._logprobs(event.tokens),
            "finish_reason": event.finish_reason,
            "path": event.path,
        }

    def _logprobs(self, tokens: list[WrittenToken]) -> p.ChatLogprobs | None:
        if not self._has_logprobs:
            return None
        content = [
            p.TokenLogprob(
                **_told(token.text, token.logprob or 0.0),
                top_logprobs=[p.TopLogprob(**_told(*each)) for each in token.top],
            )
            for token in tokens
        ]
        return p.ChatLogprobs(content=content)


def _told(token: bytes, logprob: float) -> dict[str, Any]:
    return {"token": shown(token), "logprob": logprob, "bytes": list(token)}


def usage_of(answer: Answer) -> p.Usage:
    """The tokens read and generated so far."""
    prompt, completion = answer.prompt_tokens, answer.completion_tokens
    return p.Usage(
        prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion
    )


def event_bytes(content: msgspec.Struct | dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(content) + b"\n\n"


def _head(kind: str, model: str, release: str) -> dict[str, Any]:
    told = {"id": f"{kind}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}
    return told | {"system_fingerprint": release}


# Tells proxies to forward each event at once and store none.
STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
Value = TypeVar("Value")


class ClientHungUp(Exception):
    """The client has disconnected."""


async def send_whole(
    request: Request, answer: Answer, answer_format: AnswerFormat
) -> msgspec.Struct:
    """All choices, once they are complete. Raises `ClientHungUp`, and the error of a choice."""

    async def collected() -> Events:
        """Every choice in one event, in order."""
        return sorted(joined([event async for batch in answer.events() for event in batch]))

    try:
        choices = await while_connected(request, collected())
        return answer_format.whole(choices, usage_of(answer))
    finally:
        answer.close()


async def send_stream(
    request: Request,
    answer: Answer,
    answer_format: AnswerFormat,
    options: p.StreamOptions | None,
    on_hang_up: Callable[[], object],
) -> Response:
    """A response that sends each event as it comes.

    It starts with the first event, so an error before that has its own status. Raises as
    `send_whole`.
    """
    events = answer.events()
    try:
        first = await while_connected(request, anext(events))
    except BaseException:
        answer.close()
        raise
    content = answer_format.server_sent(answer, first, events, options or p.StreamOptions())
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


async def while_connected(request: Request, work: Awaitable[Value]) -> Value:
    """The result of the work, unless the client disconnects first. Raises `ClientHungUp`."""
    working = asyncio.ensure_future(work)
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
