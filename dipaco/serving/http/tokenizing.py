"""/tokenize and /detokenize: texts and token ids, as at vLLM, for clients that count."""

from msgspec import Struct

from dipaco.serving.http.chat_template import ChatTemplate, template_message
from dipaco.serving.http.errors import ApiError
from dipaco.serving.http.protocol import Messages, NoItems, TokenId
from dipaco.serving.http.requests import check_known, refuse
from dipaco.serving.service import Service
from dipaco.serving.text import shown


class TokenizeRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /tokenize: a text as a prompt is tokenized, or the messages of a chat as one is."""

    prompt: str | None = None
    messages: Messages | None = None
    model: str | None = None
    add_special_tokens: bool | None = None  # accepted. None is added to a prompt or a chat
    return_token_strs: bool | None = None
    # The fields below belong to messages alone.
    add_generation_prompt: bool | None = None  # true: with what stands before an answer
    continue_final_message: bool | None = None  # only false
    tools: NoItems | None = None


class DetokenizeRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /detokenize: token ids."""

    tokens: list[TokenId]
    model: str | None = None


class Tokens(Struct, kw_only=True):
    tokens: list[int]
    count: int
    max_model_len: int  # tokens of the context
    token_strs: list[str] | None = None


class Detokenized(Struct, kw_only=True):
    prompt: str


def tokenize(service: Service, chat: ChatTemplate, body: TokenizeRequest) -> Tokens:
    """Raises `ApiError`, `NoSuchModel`."""
    service.models.named(body.model)
    if body.continue_final_message:
        problem = "`continue_final_message` is not supported: a chat answers a message."
        refuse("continue_final_message", f"{problem} Leave it out.")
    if body.messages is not None:
        if body.prompt is not None:
            refuse("messages", "`prompt` and `messages` are both set. Send one of them.")
        messages = [template_message(message) for message in body.messages]
        is_answered = body.add_generation_prompt is not False
        ids = chat.encode(chat.render(messages, add_generation_prompt=is_answered))
    elif body.prompt is not None:
        if body.add_generation_prompt is not None:
            problem = "`add_generation_prompt` is for `messages`. Leave it out beside a `prompt`."
            refuse("add_generation_prompt", problem)
        (ids,) = service.tokenizer.encode([body.prompt])
    else:
        problem = "You must provide a `prompt` parameter, or `messages`."
        raise ApiError(400, problem, param="prompt", code="missing_required_parameter")
    given, texts, most = ids.tolist(), None, service.model.max_length
    if body.return_token_strs:
        texts = [shown(service.token_bytes[token]) for token in given]
    return Tokens(tokens=given, count=len(given), max_model_len=most, token_strs=texts)


def detokenize(service: Service, body: DetokenizeRequest) -> Detokenized:
    """Raises `ApiError`, `NoSuchModel`."""
    service.models.named(body.model)
    check_known(service, "tokens", body.tokens)
    return Detokenized(prompt=service.tokenizer.decode(body.tokens))
