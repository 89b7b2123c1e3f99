"""The body of a request -> prompts and generation parameters, or an `ApiError`.

Parsing takes processor time, so it runs in a thread.
"""

import asyncio
import concurrent.futures
import dataclasses
import gzip
import io
import json
import secrets
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn, TypeVar

import msgspec
import msgspec.inspect as types
import numpy as np
from starlette.requests import ClientDisconnect, Request

from dipaco.errors import BadSetting
from dipaco.serving.decoding.decode import check_length
from dipaco.serving.decoding.grammar import Grammar
from dipaco.serving.decoding.sampling import SamplingSettings
from dipaco.serving.fairness import FairThreads
from dipaco.serving.http.chat_template import ChatTemplate, routed_text, template_message, text_of
from dipaco.serving.http.errors import ApiError, alternatives, body_error, inside, no_tools
from dipaco.serving.http.protocol import MAX_CHOICES, ChatRequest, CommonRequest, CompletionRequest
from dipaco.serving.http.structured import WantedSchema, wanted_schema
from dipaco.serving.models import ServedModel, ServedRelease
from dipaco.serving.service import Service

Body = TypeVar("Body")
Ignore = Callable[[str], object]  # is told of a field that nothing here reads
LARGE_BYTES = 1 << 16  # of a body that is decoded in another thread
_large_bodies = concurrent.futures.ThreadPoolExecutor(1, "large bodies")
BODY_SECONDS = 20.0  # for a body to arrive: a slower client would delay a server that is stopping


async def read_body(
    request: Request, max_bytes: int, kind: type[Body], ignore: Ignore | None = None
) -> Body:
    """Reads and decodes the body of a request, as `decode` does. Raises `ApiError`: it is too large
    (413), not sent as JSON or compressed by something else than gzip (415), or no such request.
    """
    sent_as = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    # Another site's page can send a form without permission, but JSON only with ours (not given).
    if sent_as != "application/json":
        how = f"as `{sent_as[:100]}`" if sent_as else "without a type"
        problem = f"The body was sent {how}. Send JSON: `Content-Type: application/json`."
        raise ApiError(415, problem)
    content = await _read(request, max_bytes)
    match request.headers.get("content-encoding", "").strip().lower():
        case "gzip" | "x-gzip":
            content = await _apart(_unzipped, content, max_bytes)
        case encoding if encoding not in ("", "identity"):
            problem = f"The body is compressed as `{encoding[:100]}`. Send it as it is, or by gzip."
            raise ApiError(415, problem)
    if len(content) > LARGE_BYTES:
        return await _apart(decode, content, kind, ignore)
    return decode(content, kind, ignore)


async def _apart(function: Callable[..., Body], *args: object) -> Body:
    """Calls a function in the one thread for large bodies: they wait for each other. The function
    holds the interpreter, so the thread rests after it: all large bodies together take a fifth.
    """

    def paced() -> Body:
        started_seconds = time.thread_time()
        try:
            return function(*args)
        finally:
            time.sleep(4 * (time.thread_time() - started_seconds))

    return await asyncio.get_running_loop().run_in_executor(_large_bodies, paced)


def _unzipped(content: bytes, max_bytes: int) -> bytes:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as stream:
            unzipped = stream.read(max_bytes + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ApiError(400, f"The body is no gzip: {error}. Compress it again.") from error
    if len(unzipped) > max_bytes:
        raise _too_large(max_bytes)
    return unzipped


def decode(content: bytes, kind: type[Body], ignore: Ignore | None = None) -> Body:
    """Raises `ApiError` in OpenAI's words. A field that the type lacks is left out, and `ignore` is
    told its name. None = it is an error.
    """
    content = content.removeprefix(b"\xef\xbb\xbf")  # a byte order mark
    try:
        try:
            return msgspec.json.decode(content, type=kind)
        except msgspec.ValidationError as error:
            if "got `float`" not in str(error) and ignore is None:
                raise
            value = _with_integers(msgspec.json.decode(content))
            if ignore is not None:
                value = _known_part(value, list(alternatives(types.type_info(kind))), "", ignore)
            return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise body_error(str(error), kind) from error
    except UnicodeDecodeError as error:
        raise ApiError(400, "The body is not UTF-8. Encode it as UTF-8.") from error
    except (msgspec.DecodeError, RecursionError) as error:
        if not (encoding := json.detect_encoding(content)).startswith("utf-8"):
            problem = f"The body is {encoding.upper()}. Encode it as UTF-8."
            raise ApiError(400, problem) from error
        problem = f"We could not parse the JSON body of your request: {error}. Check it as JSON."
        raise ApiError(400, problem) from error


def _with_integers(value: Any) -> Any:
    """The value with 4 for 4.0, which is an integer to JSON Schema and to some clients."""
    if isinstance(value, dict):
        return {name: _with_integers(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_with_integers(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _known_part(value: Any, kinds: list[types.Type], where: str, ignore: Ignore) -> Any:
    """The value without the fields that a value of these types does not have."""
    if isinstance(value, list):
        items = [each for kind in kinds for each in inside(kind, "")]
        return [_known_part(each, items, where, ignore) for each in value]
    if not isinstance(value, dict) or not any(isinstance(kind, types.StructType) for kind in kinds):
        return value
    known = {}
    for name, each in value.items():
        if fields := [field for kind in kinds for field in inside(kind, name)]:
            known[name] = _known_part(each, fields, f"{where}{name}.", ignore)
        else:
            ignore(where + name)
    return known


async def _read(request: Request, max_bytes: int) -> bytes:
    content = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                content += chunk
                if len(content) > max_bytes:
                    raise _too_large(max_bytes)
    except TimeoutError as error:
        problem = f"The body was incomplete after {BODY_SECONDS:.0f} s. Send it again, faster."
        raise ApiError(408, problem, code="body_too_slow") from error
    except ClientDisconnect as error:
        raise ApiError(400, "The connection was closed before the body was complete.") from error
    return bytes(content)


def _too_large(max_bytes: int) -> ApiError:
    problem = f"The body is larger than {max_bytes:,} bytes. Send less at once."
    return ApiError(413, problem, code="body_too_large")


SHORT_PROMPT = 1000  # characters or tokens
DEFAULT_TOKENS = 16  # tokens of a completion, as OpenAI
MIN_TOP_P = 1e-6  # stands for 0: only the likeliest token


class Prompt(NamedTuple):
    """A prompt of a request."""

    text: str
    ids: np.ndarray  # int32 [tokens]
    routed_by: np.ndarray  # int32 [tokens]: what the router reads
    path: int | None  # path that the request gives


@dataclasses.dataclass(frozen=True, kw_only=True)
class GenerationParams:
    """Parameters of generation for every prompt of a request."""

    max_new_tokens: int
    sampling: SamplingSettings
    n: int = 1  # choices of each prompt
    seed: int = 0  # seed of the first choice of the first prompt. The others' follow from it
    stops: tuple[str, ...] = ()  # strings that end a choice
    stop_ids: frozenset[int] = frozenset()  # tokens that end a choice
    min_new_tokens: int = 0  # tokens before a stop id may end it
    grammar: Grammar | None = None  # grammar of the text, kept compiled while it is written
    num_logprobs: int | None = None
    has_echo: bool = False  # the text begins with the prompt
    cache_salt: str = ""  # texts of the same salt may begin its own
    is_path_given: bool = False  # the request gave the path: never routed, never re-routed


class ParsedRequest(NamedTuple):
    """A request that is whole and may be answered, once its prompts are routed."""

    model: str
    served: ServedRelease
    prompts: list[Prompt]
    params: GenerationParams  # without the grammar
    schema: WantedSchema | None  # the schema of the text, still to be compiled


def parse_completion(service: Service, body: CompletionRequest) -> ParsedRequest:
    """Raises `ApiError`, `ContextTooLong`, `NoSuchModel`, `NoSuchPath`."""
    (model, path), n = _asked(service, body), body.n or 1
    if body.best_of is not None and body.best_of != n:
        refuse("best_of", f"`best_of` is {body.best_of} and `n` is {n}. Leave `best_of` out.")
    if body.max_tokens == 0 and not body.echo:
        refuse("max_tokens", "`max_tokens` is 0: nothing would be returned. Ask for 1, or `echo`.")
    prompts = prompt_list(service, body.prompt)
    if len(prompts) * n > MAX_CHOICES:
        problem = f"{len(prompts)} prompts with `n` = {n} are too many: at most {MAX_CHOICES}."
        refuse("prompt" if n == 1 else "n", problem)
    max_tokens = DEFAULT_TOKENS if body.max_tokens is None else body.max_tokens
    params = GenerationParams(
        num_logprobs=body.logprobs,
        has_echo=bool(body.echo),
        **_common_params(service, body, path, max_tokens, service.stop_ids),
    )
    encoded = [_prompt(service, prompt, path) for prompt in prompts]
    schema = wanted_schema(body.response_format)
    return ParsedRequest(model.name, model.releases.current, encoded, params, schema)


def parse_chat(service: Service, chat: ChatTemplate, body: ChatRequest) -> ParsedRequest:
    """Raises `ApiError`, `ContextTooLong`, `NoSuchModel`, `NoSuchPath`."""
    model, path = _asked(service, body)
    if body.top_logprobs and not body.logprobs:
        refuse("top_logprobs", "`top_logprobs` is set and `logprobs` is not. Set `logprobs` too.")
    for field, choice in (("tools", body.tool_choice), ("functions", body.function_call)):
        if getattr(body, field) and choice != "none":
            refuse(field, no_tools(field))
    if body.tool_choice not in (None, "none", "auto"):
        refuse("tool_choice", "There are no tools. Leave `tool_choice` out.")
    text = chat.render([template_message(message) for message in body.messages])
    _check_may_fit(service, text)
    ids = chat.encode(text)
    newer_name = body.max_completion_tokens
    max_tokens = body.max_tokens if newer_name is None else newer_name
    if max_tokens == 0:
        refuse("max_tokens", "`max_tokens` is 0: nothing would be returned. Ask for 1 or more.")
    max_tokens = service.model.max_length if max_tokens is None else max_tokens
    params = GenerationParams(
        num_logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        **_common_params(service, body, path, max_tokens, service.stop_ids | chat.stop_ids),
    )
    is_rerouted = service.settings.reroute_every is not None
    texts = [(message.role, text_of(message)) for message in body.messages]
    asked = routed_text(texts, is_latest=is_rerouted)
    (asked_ids,) = service.tokenizer.encode([asked or text])
    if not len(ids):
        refuse("messages", "The conversation is empty. Give at least one token.")
    check_length(service.model, len(ids))
    prompt = Prompt(text, ids, asked_ids if len(asked_ids) else ids, path)
    schema = wanted_schema(body.response_format)
    return ParsedRequest(model.name, model.releases.current, [prompt], params, schema)


def encode(service: Service, given: str | Sequence[int]) -> np.ndarray:
    """The token ids of one prompt, int32. An empty one is the start of a text, as at OpenAI."""
    if isinstance(given, str):
        _check_may_fit(service, given)
        (ids,) = service.tokenizer.encode([given])
    else:
        check_length(service.model, len(given))  # before each is looked up
        check_known(service, "prompt", given)
        ids = np.array(given, np.int32)
    if not len(ids) and service.edges.start is not None:
        return np.array([service.edges.start], np.int32)
    if not len(ids):
        refuse("prompt", "The prompt is empty. Give at least one token.")
    check_length(service.model, len(ids))
    return ids


async def encode_in_turn(
    service: Service, threads: FairThreads, client: str, given: str | Sequence[int]
) -> np.ndarray:
    """The same in the client's turn, or at once where that takes no longer than waiting for it."""
    if len(given) <= SHORT_PROMPT:
        return encode(service, given)
    return await threads.run(client, encode, service, given)


def check_known(service: Service, param: str, ids: Sequence[int]) -> None:
    """Raises `ApiError` for an id that is no token."""
    if unknown := [token for token in ids if token not in service.token_ids]:
        _refuse_id(service, param, str(unknown[0]))


def _refuse_id(service: Service, param: str, given: str) -> NoReturn:
    problem = f"`{given[:100]}` is not the id of one of {len(service.token_ids)} tokens"
    refuse(param, f"{problem}; the largest is {max(service.token_ids)}.")


def _asked(service: Service, body: CommonRequest) -> tuple[ServedModel, int | None]:
    """The model that is asked for, and the path, by its field or its name."""
    model, path = service.models.asked(body.model, body.path)
    check_known(service, "stop_token_ids", body.stop_token_ids or ())
    options = body.stream_options
    wants_more = options is not None and (options.include_usage or options.continuous_usage_stats)
    if wants_more and not body.stream:
        refuse("stream_options", "`stream_options` is for streams only. Set `stream`.")
    return model, path


def _common_params(
    service: Service,
    body: CommonRequest,
    path: int | None,
    max_tokens: int,
    stop_ids: frozenset[int],
) -> dict[str, Any]:
    min_tokens = body.min_tokens or 0
    if min_tokens > max_tokens:
        problem = f"`min_tokens` is {min_tokens}, and at most {max_tokens} tokens are made."
        refuse("min_tokens", f"{problem} Lower it, or raise `max_tokens`.")
    stops = (body.stop,) if isinstance(body.stop, str) else body.stop or ()
    ends = frozenset() if body.ignore_eos else stop_ids
    return {
        "max_new_tokens": max_tokens,
        "n": body.n or 1,
        "stops": tuple(filter(None, stops)),
        "seed": secrets.randbits(63) if body.seed is None else body.seed % 2**63,
        "sampling": _sampling(service, body),
        "stop_ids": ends.union(body.stop_token_ids or ()),
        "min_new_tokens": min_tokens,
        "cache_salt": body.cache_salt or "",
        "is_path_given": path is not None,
    }


def _logit_bias(service: Service, body: CommonRequest) -> tuple[tuple[int, float], ...]:
    given = body.logit_bias or {}
    for token in given:
        is_number = token.isascii() and token.isdigit() and len(token) < 10
        if not is_number or int(token) not in service.token_ids:
            _refuse_id(service, "logit_bias", token)
    by_id = {int(token): bias for token, bias in given.items()}  # "7" and "07" are one token
    return tuple(sorted(by_id.items()))


def _sampling(service: Service, body: CommonRequest) -> SamplingSettings:
    try:
        return SamplingSettings(
            temperature=1.0 if body.temperature is None else body.temperature,
            top_p=1.0 if body.top_p is None else max(body.top_p, MIN_TOP_P),
            top_k=max(0, body.top_k or 0),
            min_p=body.min_p or 0.0,
            repetition_penalty=body.repetition_penalty or 1.0,
            presence_penalty=body.presence_penalty or 0.0,
            frequency_penalty=body.frequency_penalty or 0.0,
            logit_bias=_logit_bias(service, body),
        )
    except BadSetting as error:
        raise ApiError(400, str(error), param=str(error.values["name"])) from error


def prompt_list(service: Service, prompt: str | list) -> list[str | list[int]]:
    """One or several prompts as a list. Raises `ApiError`, `ContextTooLong`."""
    if isinstance(prompt, str):
        return [prompt]
    if len(prompt) > MAX_CHOICES:  # before each is looked at
        check_length(service.model, len(prompt))
    kinds = {type(item) for item in prompt}
    if len(kinds) != 1:
        what = "an empty list" if not prompt else "a mixture of texts and tokens"
        refuse("prompt", f"The prompt is {what}. Give a text, texts, token ids, or lists of them.")
    return [prompt] if kinds == {int} else prompt


def _prompt(service: Service, given: str | list[int], path: int | None) -> Prompt:
    ids = encode(service, given)
    # An empty prompt is shown as the start token that it is.
    text = given if isinstance(given, str) and given else service.tokenizer.decode(ids)
    return Prompt(text, ids, ids, path)


def _check_may_fit(service: Service, text: str) -> None:
    """Refuses a long text by a lower bound of its tokens, without tokenizing it."""
    least = len(text.encode()) // service.longest_token_bytes
    check_length(service.model, least, "at least ")


def refuse(param: str, message: str) -> NoReturn:
    raise ApiError(400, message, param=param, code="invalid_value")
