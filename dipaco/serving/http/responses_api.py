"""/v1/responses, in its stateless form: a chat under OpenAI's newer names. No answer is kept."""

import asyncio
import itertools
import time
import uuid
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from dipaco.serving.http import protocol as p
from dipaco.serving.http.answer import Answer
from dipaco.serving.http.errors import ApiError, api_error_of
from dipaco.serving.http.responses import Events, Later, Sent, event_bytes, usage_of

STATE = ("previous_response_id", "conversation", "store", "background")


class InputMessage(p.ChatMessage, kw_only=True):
    """One message of a conversation. An earlier answer comes back as it was sent."""

    type: Literal["message"] | None = None
    id: str | None = None
    status: str | None = None
    phase: str | None = None


class NamedSchema(p.JsonSchema, tag="json_schema", tag_field="type"):
    """JSON that obeys a schema."""


class TextOptions(Struct, kw_only=True, forbid_unknown_fields=True):
    """The format of an answer."""

    format: p.TextFormat | p.ObjectFormat | NamedSchema | None = None
    verbosity: Literal["medium"] | None = None


class Reasoning(Struct, kw_only=True, forbid_unknown_fields=True):
    """No model here reasons apart from its answer."""

    effort: Literal["none"] | None = None
    summary: None = None
    generate_summary: None = None


class ResponsesRequest(p.CommonRequest, kw_only=True):
    """POST /v1/responses."""

    input: str | Annotated[list[InputMessage], Meta(min_length=1)]
    instructions: str | None = None  # a system message before the input
    max_output_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    text: TextOptions | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    truncation: Literal["disabled"] | None = None
    top_logprobs: Literal[0] | None = None
    reasoning: Reasoning | None = None
    max_tool_calls: int | None = None  # There are no tools.
    prompt: None = None
    context_management: None = None
    include: list[Literal["reasoning.encrypted_content"]] | None = None  # there is none
    # Refused, as nothing is kept.
    previous_response_id: Any = None
    conversation: Any = None
    background: bool | None = None


class OutputText(Struct, kw_only=True, tag="output_text"):
    """The text of an answer."""

    text: str
    annotations: list[Any] = []
    logprobs: list[Any] = []


class OutputMessage(Struct, kw_only=True, tag="message"):
    """An answer."""

    id: str
    status: Literal["in_progress", "completed", "incomplete"]
    role: Literal["assistant"] = "assistant"
    content: list[OutputText]


class ResponsesUsage(Struct, kw_only=True):
    """Numbers of tokens. Details are not counted."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens_details: dict[str, int]


class ResponsesReply(Struct, kw_only=True):
    """The response of /v1/responses."""

    id: str
    created_at: int
    model: str
    system_fingerprint: str  # digest of the release
    object: Literal["response"] = "response"
    status: Literal["in_progress", "completed", "incomplete", "failed"] = "in_progress"
    error: dict[str, str] | None = None
    incomplete_details: dict[str, str] | None = None
    output: list[OutputMessage] = []
    usage: ResponsesUsage | None = None
    path: int | None = None  # null until it is known
    metadata: dict[str, str]
    store: Literal[False] = False
    parallel_tool_calls: bool = False
    tool_choice: Literal["none"] = "none"
    tools: list[Any] = []


def chat_of(body: ResponsesRequest) -> p.ChatRequest:
    """The same request as a chat. Raises `ApiError` if it needs what is not kept."""
    for name in STATE:
        check_stateless(name, getattr(body, name))
    if body.n not in (None, 1):
        problem = f"`n` is {body.n}, and a response is one text. Leave `n` out."
        raise ApiError(400, problem, param="n", code="invalid_value")
    given = body.input
    if isinstance(given, str):
        given = [InputMessage(role="user", content=given)]
    if body.instructions:
        given = [InputMessage(role="system", content=body.instructions), *given]
    common = {name: getattr(body, name) for name in p.CommonRequest.__struct_fields__}
    if body.text is not None and (wanted := body.text.format) is not None:
        is_schema = isinstance(wanted, NamedSchema)
        common["response_format"] = p.SchemaFormat(json_schema=wanted) if is_schema else wanted
    return p.ChatRequest(
        **common,
        messages=list(given),
        max_tokens=body.max_output_tokens,
        tools=body.tools,
        tool_choice=body.tool_choice,
    )


def check_stateless(name: str, value: object) -> None:
    """Raises `ApiError` for a field of a request that would need what is not kept."""
    if value:
        problem = f"No answers are kept here. Leave `{name}` out, and send the conversation so far"
        raise ApiError(400, f"{problem} as `input`.", param=name, code="invalid_value")


class ResponsesFormat:
    """The format of an answer at /v1/responses."""

    def __init__(self, body: ResponsesRequest, release: str):
        self._begun = ResponsesReply(
            id=f"resp_{uuid.uuid4().hex}",
            created_at=int(time.time()),
            model=body.model,
            system_fingerprint=release,
            metadata=body.metadata or {},
        )
        self._message = OutputMessage(
            id=f"msg_{uuid.uuid4().hex}", status="in_progress", content=[]
        )

    def whole(self, choices: Events, usage: p.Usage) -> ResponsesReply:
        (event,) = choices
        status = "completed" if event.finish_reason == "stop" else "incomplete"
        content = [OutputText(text=event.text)]
        message = msgspec.structs.replace(self._message, status=status, content=content)
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return msgspec.structs.replace(
            self._begun,
            status=status,
            incomplete_details=cut,
            output=[message],
            path=event.path,
            usage=ResponsesUsage(
                input_tokens=usage.prompt_tokens,
                output_tokens=usage.completion_tokens,
                total_tokens=usage.total_tokens,
                input_tokens_details={"cached_tokens": 0},
                output_tokens_details={"reasoning_tokens": 0},
            ),
        )

    async def server_sent(
        self, answer: Answer, first: Events, later: Later, wanted: p.StreamOptions
    ) -> Sent:
        """The events of a stream, the last of which has the whole answer, or what went wrong."""
        numbers = itertools.count()

        def sent(kind: str, **fields: Any) -> bytes:
            kind = f"response.{kind}"
            content = {"type": kind, "sequence_number": next(numbers), **fields}
            return f"event: {kind}\n".encode() + event_bytes(content)

        part = {"item_id": self._message.id, "output_index": 0, "content_index": 0}
        yield sent("created", response=self._begun)
        yield sent("in_progress", response=self._begun)
        yield sent("output_item.added", output_index=0, item=self._message)
        yield sent("content_part.added", **part, part=OutputText(text=""))
        batch, text = first, ""
        try:
            while batch is not None:
                (event,) = batch
                if event.text:
                    yield sent("output_text.delta", **part, delta=event.text, logprobs=[])
                text += event.text
                batch = await anext(later, None)
        except Exception as error:
            detail = api_error_of(error).detail
            told = {"code": detail.code or "server_error", "message": detail.message}
            failed = msgspec.structs.replace(self._begun, status="failed", error=told)
            yield sent("failed", response=failed)
            return
        whole = self.whole([event._replace(text=text)], usage_of(answer))
        (message,) = whole.output
        yield sent("output_text.done", **part, text=text, logprobs=[])
        yield sent("content_part.done", **part, part=message.content[0])
        yield sent("output_item.done", output_index=0, item=message)
        yield sent(whole.status, response=whole)
        await asyncio.sleep(0)  # as after chunks
