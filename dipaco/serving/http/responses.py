"""An answer as a completion or a chat, whole or as the events of a stream."""

import time
import uuid
from typing import Any, Protocol

import msgspec

from dipaco.serving.http.answer import Answer, AnswerEvent
from dipaco.serving.http.protocol import (
    AssistantMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatLogprobs,
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    TokenLogprob,
    TopLogprob,
    Usage,
)
from dipaco.serving.text import WrittenToken, shown

END = b"data: [DONE]\n\n"


class AnswerFormat(Protocol):
    """The format of an answer for one endpoint."""

    def opening(self, num_choices: int) -> msgspec.Struct | None: ...
    def chunk(self, events: list[AnswerEvent]) -> Completion | ChatChunk: ...
    def whole(self, choices: list[AnswerEvent], usage: Usage) -> msgspec.Struct: ...
    def closing(self, usage: Usage) -> msgspec.Struct: ...


class CompletionFormat:
    """/v1/completions."""

    def __init__(self, model: str, release: str, num_logprobs: int | None):
        self._head = _head("cmpl", model, release)
        self._num_logprobs = num_logprobs

    def opening(self, num_choices: int) -> None:
        """A completion starts with its first text."""

    def chunk(self, events: list[AnswerEvent]) -> Completion:
        choices = [self._choice(event) for event in events]
        return Completion(object="text_completion", choices=choices, **self._head)

    def whole(self, choices: list[AnswerEvent], usage: Usage) -> Completion:
        chunk = self.chunk(choices)
        chunk.usage = usage
        return chunk

    def closing(self, usage: Usage) -> Completion:
        return self.whole([], usage)

    def _choice(self, event: AnswerEvent) -> CompletionChoice:
        return CompletionChoice(
            index=event.index,
            text=event.text,
            logprobs=self._logprobs(event.tokens),
            finish_reason=event.finish_reason,
            path=event.path,
        )

    def _logprobs(self, tokens: list[WrittenToken]) -> CompletionLogprobs | None:
        if self._num_logprobs is None:
            return None
        tops = [_tops(token) for token in tokens] if self._num_logprobs else None
        return CompletionLogprobs(
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


class ChatFormat:
    """/v1/chat/completions."""

    def __init__(self, model: str, release: str, has_logprobs: bool):
        self._head = _head("chatcmpl", model, release)
        self._has_logprobs = has_logprobs

    def opening(self, num_choices: int) -> ChatChunk:
        """The role, before any text."""
        message = AssistantMessage(role="assistant", content="")
        return self._chunk(
            [
                ChatChunkChoice(
                    index=i, delta=message, logprobs=None, finish_reason=None, path=None
                )
                for i in range(num_choices)
            ]
        )

    def chunk(self, events: list[AnswerEvent]) -> ChatChunk:
        return self._chunk(
            [
                ChatChunkChoice(
                    index=event.index,
                    delta=AssistantMessage(content=event.text)
                    if event.text
                    else AssistantMessage(),
                    logprobs=self._logprobs(event.tokens),
                    finish_reason=event.finish_reason,
                    path=event.path,
                )
                for event in events
            ]
        )

    def whole(self, choices: list[AnswerEvent], usage: Usage) -> ChatCompletion:
        chat_choices = [
            ChatChoice(
                index=event.index,
                message=AssistantMessage(role="assistant", content=event.text),
                logprobs=self._logprobs(event.tokens),
                finish_reason=event.finish_reason,
                path=event.path,
            )
            for event in choices
        ]
        return ChatCompletion(
            object="chat.completion", choices=chat_choices, usage=usage, **self._head
        )

    def closing(self, usage: Usage) -> ChatChunk:
        chunk = self._chunk([])
        chunk.usage = usage
        return chunk

    def _chunk(self, deltas: list[ChatChunkChoice]) -> ChatChunk:
        return ChatChunk(object="chat.completion.chunk", choices=deltas, **self._head)

    def _logprobs(self, tokens: list[WrittenToken]) -> ChatLogprobs | None:
        if not self._has_logprobs:
            return None
        return ChatLogprobs(
            content=[
                TokenLogprob(
                    token=shown(token.text),
                    logprob=token.logprob or 0.0,
                    bytes=list(token.text),
                    top_logprobs=[
                        TopLogprob(token=shown(text), logprob=logprob, bytes=list(text))
                        for text, logprob in token.top
                    ],
                )
                for token in tokens
            ]
        )


def usage_of(answer: Answer) -> Usage:
    """The tokens read and generated so far."""
    prompt, completion = answer.prompt_tokens, answer.completion_tokens
    return Usage(
        prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion
    )


def event_bytes(content: msgspec.Struct) -> bytes:
    """One server-sent event."""
    return b"data: " + msgspec.json.encode(content) + b"\n\n"


def _head(kind: str, model: str, release: str) -> dict[str, Any]:
    return {
        "id": f"{kind}-{uuid.uuid4().hex}",
        "created": int(time.time()),
        "model": model,
        "system_fingerprint": release,
    }
