"""Requests and responses as types: OpenAI's completions and chat, and fields of this server.

The published OpenAPI document is made of these types, so it says what the server does. OpenAI's
fields that this server does not support are listed too, and accept only their neutral value. A
field that may be left out may be null. This server adds `top_k`, `min_p`, `repetition_penalty`,
`stop_token_ids`, `ignore_eos`, `min_tokens`, `cache_salt` and `path` in requests, `path` in
choices, and `dipaco` in the list of models.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from dipaco.serving.decoding.sampling import LEAST_PENALTY, MAX_BIASES


class TextFormat(Struct, kw_only=True, forbid_unknown_fields=True, tag="text", tag_field="type"):
    """Any text."""


class ObjectFormat(
    Struct, kw_only=True, forbid_unknown_fields=True, tag="json_object", tag_field="type"
):
    """A JSON object."""


class JsonSchema(Struct, kw_only=True, forbid_unknown_fields=True):
    """The schema that an answer obeys."""

    name: str
    description: str | None = None  # accepted and ignored, as the model is not told
    schema: dict[str, Any] | None = None  # None = any object
    strict: bool | None = None  # accepted: the answer always obeys


class SchemaFormat(
    Struct, kw_only=True, forbid_unknown_fields=True, tag="json_schema", tag_field="type"
):
    """JSON that obeys a schema."""

    json_schema: JsonSchema


ResponseFormat = TextFormat | ObjectFormat | SchemaFormat


MAX_STOPS = 16  # strings. OpenAI takes 4
MAX_CHOICES = 128  # prompts x n of one request
MAX_LOGPROBS = 20  # alternatives for each token

TopK = Annotated[int, Meta(ge=-1, le=2**31 - 1)]
Index = Annotated[int, Meta(ge=0, le=2**31 - 1)]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Count = Annotated[int, Meta(ge=1, le=MAX_CHOICES)]
Logprobs = Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)]
Probability = Annotated[float, Meta(ge=0, le=1)]
Stop = Annotated[str, Meta(max_length=1000)]  # an empty one is none
Stops = Annotated[list[Stop], Meta(max_length=MAX_STOPS)]
StopIds = Annotated[list[TokenId], Meta(max_length=MAX_STOPS)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
NoItems = Annotated[list[Any], Meta(max_length=0)]
Biases = Annotated[dict[str, Bias], Meta(max_length=MAX_BIASES)]  # keys are token ids


class StreamOptions(Struct, kw_only=True, forbid_unknown_fields=True):
    """Extra content of a stream besides text."""

    include_usage: bool | None = None  # false
    # A field of vLLM's: usage so far with each event. False by default.
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None  # accepted and ignored


class CommonRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """The fields that both kinds of request share."""

    model: str
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None  # 1 by default. 0 = greedy
    top_p: Probability | None = None  # 1
    top_k: TopK | None = None  # 0, and -1 as vLLM has it = all
    min_p: Probability | None = None  # 0 = off
    repetition_penalty: Annotated[float, Meta(ge=LEAST_PENALTY, le=100)] | None = None  # 1 = off
    n: Count | None = None  # 1
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None  # None = drawn
    stop: Stop | Stops | None = None
    stop_token_ids: StopIds | None = None  # left out of the text, as the strings are
    ignore_eos: bool | None = None  # go on after the end of the text
    # 0 by default. Tokens made before a text may end, unless by a stop string.
    min_tokens: Index | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    # Accepted and ignored: for OpenAI's own accounts and records.
    user: str | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    service_tier: Literal["auto", "default"] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    # A field of vLLM's: a text begins from the cache only after texts of this API key and salt.
    cache_salt: Annotated[str, Meta(max_length=1000)] | None = None
    presence_penalty: Penalty | None = None  # 0 = off. Counts the tokens that are made
    frequency_penalty: Penalty | None = None
    logit_bias: Biases | None = None
    path: Index | None = None  # use this path and do not ask the router
    response_format: ResponseFormat | None = None  # format of the text that is made


class CompletionRequest(CommonRequest):
    """POST /v1/completions."""

    # One or several prompts, each a text or token ids.
    prompt: str | list[str | TokenId | list[TokenId]]
    max_tokens: Index | None = None  # default 16, as OpenAI
    echo: bool | None = None
    logprobs: Logprobs | None = None
    best_of: Count | None = None  # only equal to n
    suffix: Literal[""] | None = None


class TextPart(Struct, kw_only=True, forbid_unknown_fields=True):
    """A part of a message. Only text is supported."""

    type: Literal["text", "input_text", "output_text"]  # the latter two at /v1/responses
    text: str
    annotations: NoItems | None = None
    logprobs: NoItems | None = None


class ChatMessage(Struct, kw_only=True, forbid_unknown_fields=True):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart] | None  # null = no text
    name: str | None = None
    refusal: None = None
    audio: None = None
    annotations: NoItems | None = None
    tool_calls: NoItems | None = None
    function_call: None = None


Messages = Annotated[list[ChatMessage], Meta(min_length=1)]


class ChatRequest(CommonRequest):
    """POST /v1/chat/completions."""

    messages: Messages
    max_tokens: Index | None = None  # default: until the context is full
    max_completion_tokens: Index | None = None  # the newer name of `max_tokens`
    logprobs: bool | None = None
    top_logprobs: Logprobs | None = None
    # Text in, text out, and no tools, unless none may be called:
    modalities: list[Literal["text"]] | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    functions: list[Any] | None = None
    function_call: Literal["none", "auto"] | None = None
    reasoning_effort: Literal["none"] | None = None
    verbosity: Literal["medium"] | None = None
    prediction: None = None
    audio: None = None
    web_search_options: None = None


class RouteRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/route: one text, or token ids."""

    prompt: str | list[TokenId]
    model: str | None = None


# --- responses ----------------------------------------------------------------------------------


class Usage(Struct, kw_only=True):
    """Numbers of tokens. Every prompt counts once, whatever n."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CompletionLogprobs(Struct, kw_only=True):
    """The tokens of a completion's text as parallel lists, with log-probabilities in nats."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class CompletionChoice(Struct, kw_only=True):
    """One continuation of one prompt."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"] | None
    path: int


class _Reply(Struct, kw_only=True):
    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str  # digest of the release


class Completion(_Reply, kw_only=True):
    """The response of /v1/completions, and each event of its stream."""

    choices: list[CompletionChoice]
    usage: Usage | None = None


class TopLogprob(Struct, kw_only=True):
    """An alternative token."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob, kw_only=True):
    """A token of the message, and its alternatives."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct, kw_only=True):
    """The tokens of a message."""

    content: list[TokenLogprob]


class AssistantMessage(Struct, kw_only=True, omit_defaults=True):
    """A message, or what an event of a stream adds to it."""

    role: Literal["assistant"] | None = None
    content: str | None = None


class ChatChoice(Struct, kw_only=True):
    """One answer to the conversation."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length"] | None
    path: int


class ChatCompletion(_Reply, kw_only=True):
    """The response of /v1/chat/completions."""

    choices: list[ChatChoice]
    usage: Usage


class ChatChunkChoice(Struct, kw_only=True):
    """The addition of one event of a stream to one choice."""

    index: int
    delta: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length"] | None
    path: int | None  # null until it is known


class ChatChunk(_Reply, kw_only=True):
    """An event of a stream of /v1/chat/completions."""

    choices: list[ChatChunkChoice]
    usage: Usage | None = None


class PathScore(Struct, kw_only=True):
    """The score of one path that was compared: the router's, or nats. Higher is better."""

    path: int
    score: float


class RouteResponse(Struct, kw_only=True):
    """The response of /v1/route."""

    path: int
    modules: list[str]
    scores: list[PathScore] | None  # best first. null = there is only one path
    prompt_tokens: int
    routed_tokens: int  # the prefix that the router read
    is_guess: bool  # it is shorter than what the router was made for
    release: str
    seconds: float


class LevelCard(Struct, kw_only=True):
    """A level of the model: its parts, and the modules to choose from."""

    name: str
    parts: list[str]
    modules: list[str]


class ModelCard(Struct, kw_only=True):
    """Our own fields in the list of models."""

    arm: str
    phase: int
    release: str
    is_routed: bool  # else every prompt goes to path 0
    num_paths: int
    context: int  # tokens
    prefix_tokens: int  # tokens that the router reads
    score_meaning: str | None  # meaning of the scores of /v1/route. null = nothing is routed
    parameters_per_path: int
    parameters_total: int
    has_chat: bool  # always
    examples: list[str]  # example prompts: how texts of the run begin
    levels: list[LevelCard]


class ModelEntry(Struct, kw_only=True):
    """An entry of /v1/models."""

    id: str
    object: str
    created: int
    owned_by: str
    dipaco: ModelCard


class ModelList(Struct, kw_only=True):
    """The response of /v1/models."""

    object: str
    data: list[ModelEntry]


class PathCard(Struct, kw_only=True):
    """A path, and the documents that it was trained on: null if it had no shard."""

    path: int
    modules: list[str]
    documents: int | None = None
    share: float | None = None  # share of all paths' documents
    domains: dict[str, float] | None = None  # the share of each in its documents, largest first


class PathList(Struct, kw_only=True):
    object: str
    model: str
    data: list[PathCard]


class ErrorDetail(Struct, kw_only=True):
    """The problem, and the field that it is in."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(Struct, kw_only=True):
    error: ErrorDetail


class VersionReply(Struct, kw_only=True):
    version: str


class HealthReply(Struct, kw_only=True):
    """The response of /healthz, /health and /readyz."""

    status: str
    detail: dict[str, Any] = {}
