"""The body of a request -> prompts and generation parameters, or an `ApiError`.

Parsing takes processor time, so it runs in a thread.
"""

import secrets
from collections.abc import Callable, Sequence
from typing import NamedTuple, NoReturn

import numpy as np

from dipaco.errors import BadSetting
from dipaco.serving.decoding.sampling import SamplingSettings
from dipaco.serving.errors import ContextTooLong
from dipaco.serving.http.answer import GenerationParams
from dipaco.serving.http.bodies import no_tools
from dipaco.serving.http.chat_template import (
    ChatTemplate,
    required_template,
    routed_text,
    template_message,
)
from dipaco.serving.http.errors import ApiError
from dipaco.serving.http.protocol import (
    MAX_CHOICES,
    ChatRequest,
    CommonRequest,
    CompletionRequest,
)
from dipaco.serving.http.structured import WantedSchema, wanted_schema
from dipaco.serving.models import ServedModel
from dipaco.serving.releases import ServedRelease
from dipaco.serving.service import Service

DEFAULT_TOKENS = 16  # tokens of a completion, as OpenAI
MIN_TOP_P = 1e-6  # stands for 0: only the likeliest token


class UnroutedPrompt(NamedTuple):
    """A prompt that has no path yet."""

    text: str
    ids: np.ndarray  # int32 [tokens]
    routed_by: np.ndarray  # int32 [tokens]: what the router reads
    path: int | None  # path that the request gives


class ParsedRequest(NamedTuple):
    """A request that is whole and may be answered, once its prompts are routed."""

    model: str
    served: ServedRelease
    prompts: list[UnroutedPrompt]
    params: GenerationParams  # without the grammar
    schema: WantedSchema | None  # the schema of the text, still to be compiled

    @property
    def num_choices(self) -> int:
        return len(self.prompts) * self.params.n


def parse_completion(service: Service, body: CompletionRequest) -> ParsedRequest:
    """Raises `ApiError`, `ContextTooLong`, `NoSuchModel`, `NoSuchPath`."""
    model, path = _model_and_path(service, body)
    n = _check_common(service, body)
    if body.best_of is not None and body.best_of != n:
        _refuse("best_of", f"`best_of` is {body.best_of} and `n` is {n}. Leave `best_of` out.")
    if body.max_tokens == 0 and not body.echo:
        _refuse("max_tokens", "`max_tokens` is 0: nothing would be returned. Ask for 1, or `echo`.")
    prompts = prompt_list(body.prompt, "prompt")
    if len(prompts) * n > MAX_CHOICES:
        problem = f"{len(prompts)} prompts with `n` = {n} are too many: at most {MAX_CHOICES}."
        _refuse("prompt" if n == 1 else "n", problem)
    max_tokens = DEFAULT_TOKENS if body.max_tokens is None else body.max_tokens
    params = GenerationParams(
        max_new_tokens=max_tokens,
        num_logprobs=body.logprobs,
        has_echo=bool(body.echo),
        **_common_params(service, body, n, max_tokens, service.stop_ids),
        is_path_given=path is not None,
    )
    encoded = [_prompt(service, prompt, path) for prompt in prompts]
    schema = wanted_schema(body.response_format)
    return ParsedRequest(model.name, model.releases.current, encoded, params, schema)


def parse_chat(service: Service, chat: ChatTemplate | None, body: ChatRequest) -> ParsedRequest:
    """Raises `ApiError`, `ContextTooLong`, `NoSuchModel`, `NoSuchPath`."""
    model, path = _model_and_path(service, body)
    n = _check_common(service, body)
    chat = required_template(chat, "/v1/completions")
    if body.top_logprobs and not body.logprobs:
        _refuse("top_logprobs", "`top_logprobs` is set and `logprobs` is not. Set `logprobs` too.")
    for field, choice in (("tools", body.tool_choice), ("functions", body.function_call)):
        if getattr(body, field) and choice != "none":
            _refuse(field, no_tools(field))
    if body.tool_choice not in (None, "none", "auto"):
        _refuse("tool_choice", "There are no tools. Leave `tool_choice` out.")
    text = chat.render([template_message(message) for message in body.messages])
    _check_may_fit(service, text)
    ids = chat.encode(text)
    newer_name = body.max_completion_tokens
    max_tokens = body.max_tokens if newer_name is None else newer_name
    if max_tokens == 0:
        _refuse("max_tokens", "`max_tokens` is 0: nothing would be returned. Ask for 1 or more.")
    max_tokens = service.model.max_length if max_tokens is None else max_tokens
    params = GenerationParams(
        max_new_tokens=max_tokens,
        num_logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        **_common_params(service, body, n, max_tokens, service.stop_ids | chat.stop_ids),
        is_path_given=path is not None,
    )
    is_rerouted = service.settings.reroute_every is not None
    asked = routed_text(body.messages, is_latest=is_rerouted)
    (asked_ids,) = service.tokenizer.encode([asked or text])
    if not len(ids):
        _refuse("messages", "The conversation is empty. Give at least one token.")
    _check_fits(service, len(ids), str)
    prompt = UnroutedPrompt(text, ids, asked_ids if len(asked_ids) else ids, path)
    schema = wanted_schema(body.response_format)
    return ParsedRequest(model.name, model.releases.current, [prompt], params, schema)


def encode(service: Service, given: str | Sequence[int]) -> np.ndarray:
    """The token ids of one prompt, int32. An empty prompt is the start of a text, as at OpenAI.

    Raises:
      ApiError, ContextTooLong.
    """
    if isinstance(given, str):
        _check_may_fit(service, given)
        (ids,) = service.tokenizer.encode([given])
    else:
        _check_fits(service, len(given), str)  # before each is looked up
        check_known(service, "prompt", given)
        ids = np.array(given, np.int32)
    if not len(ids) and service.edges.start is not None:
        return np.array([service.edges.start], np.int32)
    if not len(ids):
        _refuse("prompt", "The prompt is empty. Give at least one token.")
    _check_fits(service, len(ids), str)
    return ids


def check_known(service: Service, param: str, ids: Sequence[int]) -> None:
    """Raises `ApiError` for an id that is no token."""
    if unknown := [token for token in ids if token not in service.token_ids]:
        _refuse_id(service, param, str(unknown[0]))


def _refuse_id(service: Service, param: str, given: str) -> NoReturn:
    problem = f"`{given[:100]}` is not the id of one of {len(service.token_ids)} tokens"
    _refuse(param, f"{problem}; the largest is {max(service.token_ids)}.")


def _check_common(service: Service, body: CommonRequest) -> int:
    """Checks the fields that both kinds share. Returns n."""
    check_known(service, "stop_token_ids", body.stop_token_ids or ())
    if body.stream_options is not None and not body.stream:
        _refuse("stream_options", "`stream_options` is for streams only. Set `stream`.")
    return body.n or 1


def _common_params(
    service: Service, body: CommonRequest, n: int, max_tokens: int, stop_ids: frozenset[int]
) -> dict:
    min_tokens = body.min_tokens or 0
    if min_tokens > max_tokens:
        problem = f"`min_tokens` is {min_tokens}, and at most {max_tokens} tokens are made."
        _refuse("min_tokens", f"{problem} Lower it, or raise `max_tokens`.")
    stops = (body.stop,) if isinstance(body.stop, str) else body.stop or ()
    return {
        "n": n,
        "stops": tuple(filter(None, stops)),
        "seed": secrets.randbits(63) if body.seed is None else body.seed % 2**63,
        "sampling": _sampling(service, body),
        "stop_ids": frozenset(body.stop_token_ids or ())
        | (frozenset() if body.ignore_eos else stop_ids),
        "min_new_tokens": min_tokens,
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


def prompt_list(prompt: str | list, param: str) -> list[str | list[int]]:
    """One or several prompts as a list. Raises `ApiError`."""
    if isinstance(prompt, str):
        return [prompt]
    kinds = {type(item) for item in prompt}
    if len(kinds) != 1:
        what = "an empty list" if not prompt else "a mixture of texts and tokens"
        _refuse(param, f"The {param} is {what}. Give a text, texts, token ids, or lists of them.")
    return [prompt] if kinds == {int} else prompt


def _prompt(service: Service, given: str | list[int], path: int | None) -> UnroutedPrompt:
    ids = encode(service, given)
    # An empty prompt is shown as the start token that it is.
    text = given if isinstance(given, str) and given else service.tokenizer.decode(ids)
    return UnroutedPrompt(text, ids, ids, path)


def _model_and_path(service: Service, body: CommonRequest) -> tuple[ServedModel, int | None]:
    """The model that is asked for, and the path, by its field or its name. Raises `ApiError`,
    `NoSuchModel`, `NoSuchPath`.
    """
    model, path = service.models.find(body.model)
    if body.path not in (None, path) and path is not None:
        _refuse("path", f"`path` is {body.path}, and the model is path {path}. Leave one out.")
    path = body.path if path is None else path
    if path is not None:
        model.releases.current.modules_of(path)
    return model, path


def _check_may_fit(service: Service, text: str) -> None:
    """Refuses a long text by a lower bound of its tokens, without tokenizing it."""
    least = len(text.encode()) // service.longest_token_bytes
    _check_fits(service, least, lambda least: f"at least {least}")


def _check_fits(service: Service, num_tokens: int, describe: Callable[[int], str]) -> None:
    limit = service.model.max_length
    if num_tokens >= limit:
        raise ContextTooLong(
            num_tokens=describe(num_tokens),
            where="the context",
            limit=limit,
            remedy="Shorten it: at least one more token must fit.",
        )


def _refuse(param: str, message: str) -> NoReturn:
    raise ApiError(400, message, param=param, code="invalid_value")
