"""A request -> prompts that are routed, and what is wanted of each.

Everything here takes a moment of processor time and none of the event loop: it runs in a thread.
"""

import secrets
from collections.abc import Callable, Sequence
from typing import NamedTuple, NoReturn

import numpy as np

from dipaco.serving.decoding.sampling import SamplingSettings
from dipaco.serving.errors import ContextTooLong
from dipaco.serving.http.answer import GenerationParams, Prompt
from dipaco.serving.http.chat import Chat
from dipaco.serving.http.protocol import (
    MOST_CHOICES,
    ChatMessage,
    ChatRequest,
    CompletionRequest,
    Sampling,
)
from dipaco.serving.http.refusals import Refusal
from dipaco.serving.releases import Served
from dipaco.serving.service import Service

DEFAULT_TOKENS = 16  # of a completion, as OpenAI
LEAST_TOP_P = 1e-6  # 0 means the likeliest token alone: it is always kept


class ParsedRequest(NamedTuple):
    """A request, understood."""

    served: Served
    prompts: list[Prompt]
    wish: GenerationParams


def understand_completion(service: Service, body: CompletionRequest) -> ParsedRequest:
    """Raises `Refusal`, `ContextTooLong`, `NoSuchPath`."""
    n = _common(service, body)
    if body.best_of is not None and body.best_of != n:
        _refuse("best_of", f"`best_of` is {body.best_of} and `n` is {n}. Leave `best_of` out.")
    if body.max_tokens == 0 and not body.echo:
        _refuse("max_tokens", "`max_tokens` is 0: nothing would come back. Ask for 1, or `echo`.")
    given = _several(body.prompt)
    if len(given) * n > MOST_CHOICES:
        problem = f"{len(given)} prompts with `n` = {n} are too many: at most {MOST_CHOICES}."
        _refuse("prompt" if n == 1 else "n", problem)
    wish = GenerationParams(
        max_new_tokens=DEFAULT_TOKENS if body.max_tokens is None else body.max_tokens,
        num_logprobs=body.logprobs,
        has_echo=bool(body.echo),
        stop_ids=service.stop_ids,
        **_wish(body, n),
    )
    served = service.releases.now
    return ParsedRequest(served, [_prompt(service, served, one, body.path) for one in given], wish)


def understand_chat(service: Service, chat: Chat | None, body: ChatRequest) -> ParsedRequest:
    """Raises `Refusal`, `ContextTooLong`, `NoSuchPath`."""
    n = _common(service, body)
    if chat is None:
        raise Refusal(
            400,
            "This model's tokenizer has no chat template. Use /v1/completions, or start the server "
            "with `--chat-template FILE`.",
            code="no_chat_template",
        )
    if body.top_logprobs is not None and not body.logprobs:
        _refuse("top_logprobs", "`top_logprobs` is set and `logprobs` is not. Set `logprobs` too.")
    text = chat.render([_as_template_reads(message) for message in body.messages])
    _check_may_fit(service, text)
    ids = chat.encode(text)
    wanted = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    if wanted == 0:
        _refuse("max_tokens", "`max_tokens` is 0: nothing would come back. Ask for 1 or more.")
    wish = GenerationParams(
        max_new_tokens=service.model.max_length if wanted is None else wanted,
        num_logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        stop_ids=service.stop_ids | chat.stop_ids,
        **_wish(body, n),
    )
    served = service.releases.now
    return ParsedRequest(served, [_routed(service, served, text, ids, body.path)], wish)


def encode(service: Service, given: str | Sequence[int]) -> np.ndarray:
    """The ids of one prompt, int32. Raises `Refusal`, `ContextTooLong`."""
    if isinstance(given, str):
        _check_may_fit(service, given)
        (ids,) = service.tokenizer.encode([given])
    else:
        if unknown := [i for i in given if i >= service.model.vocab_size]:
            _refuse("prompt", f"Token {unknown[0]} is not one of {service.model.vocab_size}.")
        ids = np.array(given, np.int32)
    if not len(ids):
        _refuse("prompt", "The prompt is empty. Give at least one token.")
    _check_fits(service, len(ids), str)
    return ids


def _common(service: Service, body: Sampling) -> int:
    """Checks what both kinds share; returns n."""
    if body.model != service.name:
        raise Refusal(
            404,
            f"The model `{body.model[:100]}` does not exist. This server has `{service.name}`.",
            param="model",
            code="model_not_found",
        )
    if body.stream_options is not None and not body.stream:
        _refuse("stream_options", "`stream_options` is for streams only. Set `stream`.")
    return body.n or 1


def _wish(body: Sampling, n: int) -> dict:
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    top_p = 1.0 if body.top_p is None else max(body.top_p, LEAST_TOP_P)
    return {
        "n": n,
        "stops": stop,
        "is_path_given": body.path is not None,
        "seed": secrets.randbits(31) if body.seed is None else body.seed % 2**63,
        "sampling": SamplingSettings(
            temperature=1.0 if body.temperature is None else body.temperature,
            top_p=top_p,
            top_k=body.top_k or 0,
            min_p=body.min_p or 0.0,
            repetition_penalty=body.repetition_penalty or 1.0,
        ),
    }


def _several(prompt: str | list) -> list[str | list[int]]:
    """One or several prompts, as several."""
    if isinstance(prompt, str):
        return [prompt]
    kinds = {type(one) for one in prompt}
    if len(kinds) != 1:
        what = "an empty list" if not prompt else "a mixture of texts and tokens"
        _refuse("prompt", f"The prompt is {what}. Give a text, texts, token ids, or lists of them.")
    return [prompt] if kinds == {int} else prompt


def _prompt(service: Service, served: Served, given: str | list[int], path: int | None) -> Prompt:
    ids = encode(service, given)
    text = given if isinstance(given, str) else service.tokenizer.decode(given)
    return _routed(service, served, text, ids, path)


def _routed(
    service: Service, served: Served, text: str, ids: np.ndarray, path: int | None
) -> Prompt:
    if not len(ids):
        _refuse("messages", "The conversation is empty. Give at least one token.")
    _check_fits(service, len(ids), str)
    return Prompt(text, tuple(ids.tolist()), service.choose(served, ids, path))


def _check_may_fit(service: Service, text: str) -> None:
    """No tokenizer makes fewer tokens than this; a megabyte need not be read to be refused."""
    least = len(text.encode()) // service.longest_token_bytes
    _check_fits(service, least, lambda least: f"at least {least}")


def _check_fits(service: Service, num_tokens: int, told: Callable[[int], str]) -> None:
    limit = service.model.max_length
    if num_tokens >= limit:
        raise ContextTooLong(
            num_tokens=told(num_tokens),
            where="the context",
            limit=limit,
            remedy="Shorten it: one token more must fit.",
        )


def _as_template_reads(message: ChatMessage) -> dict[str, str]:
    content = message.content
    if not isinstance(content, str):
        content = "".join(part.text for part in content)
    role = "system" if message.role == "developer" else message.role
    return {"role": role, "content": content, **({"name": message.name} if message.name else {})}


def _refuse(param: str, message: str) -> NoReturn:
    raise Refusal(400, message, param=param, code="invalid_value")
