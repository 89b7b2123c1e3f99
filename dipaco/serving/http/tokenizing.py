"""/tokenize and /detokenize: texts and token ids, as at vLLM, for clients that count."""

from msgspec import Struct

from dipaco.serving.http.protocol import TokenId
from dipaco.serving.http.requests import check_known
from dipaco.serving.service import Service
from dipaco.serving.text import shown


class TokenizeRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /tokenize: a text, as a prompt is tokenized."""

    prompt: str
    model: str | None = None
    add_special_tokens: bool | None = None  # accepted; a prompt gets none
    return_token_strs: bool | None = None


class DetokenizeRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /detokenize: token ids."""

    tokens: list[TokenId]
    model: str | None = None


class Tokens(Struct, kw_only=True):
    """The response of /tokenize."""

    tokens: list[int]
    count: int
    max_model_len: int  # tokens of the context
    token_strs: list[str] | None = None


class Detokenized(Struct, kw_only=True):
    """The response of /detokenize."""

    prompt: str


def tokenize(service: Service, body: TokenizeRequest) -> Tokens:
    """Raises `NoSuchModel`."""
    service.models.named(body.model)
    (ids,) = service.tokenizer.encode([body.prompt])
    texts = None
    if body.return_token_strs:
        texts = [shown(service.token_bytes[token]) for token in ids.tolist()]
    return Tokens(
        tokens=ids.tolist(),
        count=len(ids),
        max_model_len=service.model.max_length,
        token_strs=texts,
    )


def detokenize(service: Service, body: DetokenizeRequest) -> Detokenized:
    """Raises `ApiError`, `NoSuchModel`."""
    service.models.named(body.model)
    check_known(service, "tokens", body.tokens)
    return Detokenized(prompt=service.tokenizer.decode(body.tokens))
