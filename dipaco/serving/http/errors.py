"""Every error as OpenAI writes it: `{"error": {message, type, param, code}}`, and its status."""

import logging
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import msgspec.inspect as types

from dipaco.errors import DipacoError, NoSuchPath
from dipaco.runs.errors import NotAllPaths
from dipaco.serving import errors
from dipaco.serving.http.protocol import ErrorDetail, ErrorResponse
from dipaco.store.errors import ObjectDamaged, ObjectMissing, StoreFault

INVALID = "invalid_request_error"
log = logging.getLogger(__name__)


class ApiError(Exception):
    """An error response.

    Args:
      status: of HTTP.
      message: a sentence for the author of the request.
      param: the field in question.
      code: for programs.
      retry_after_seconds: when to retry, if that can help.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_seconds: int | None = None,
    ):
        super().__init__(message)
        self.status = status
        kind = INVALID if status < 500 else "server_error"
        kind = {401: "authentication_error", 429: "rate_limit_error"}.get(status, kind)
        self.detail = ErrorDetail(message=message, type=kind, param=param, code=code)
        self.headers: dict[str, str] = {}
        if retry_after_seconds is not None:
            self.headers["Retry-After"] = str(retry_after_seconds)
        if status == 401:
            self.headers["WWW-Authenticate"] = "Bearer"

    def body(self) -> bytes:
        return msgspec.json.encode(ErrorResponse(error=self.detail))


# Kind of error -> status of its response, and the fields beside its message.
RESPONSES: dict[type[DipacoError], tuple[int, dict[str, Any]]] = {
    errors.QueueFull: (429, {"code": "queue_full", "retry_after_seconds": 1}),
    errors.LoopStopping: (503, {"code": "stopping", "retry_after_seconds": 5}),
    errors.NoUpstream: (503, {"code": "no_upstream", "retry_after_seconds": 5}),
    NotAllPaths: (503, {"param": "prompt", "code": "path_not_whole"}),
    ObjectMissing: (503, {"param": "path", "code": "path_not_whole"}),
    ObjectDamaged: (503, {"param": "path", "code": "path_not_whole"}),
    StoreFault: (503, {"code": "path_not_there", "retry_after_seconds": 5}),
    errors.NoRoomForPath: (503, {"code": "path_not_there", "retry_after_seconds": 5}),
    errors.PathCacheTooSmall: (503, {"param": "path", "code": "path_too_large"}),
    errors.PathElsewhere: (404, {"param": "model", "code": "path_elsewhere"}),
    errors.NoSuchModel: (404, {"param": "model", "code": "model_not_found"}),
    errors.GrammarFailed: (400, {"param": "response_format", "code": "grammar_failed"}),
    errors.NoGrammar: (400, {"param": "response_format", "code": "no_structured_output"}),
    errors.EmptyPrompt: (400, {"param": "prompt"}),
    errors.ContextTooLong: (400, {"param": "prompt", "code": "context_length_exceeded"}),
    errors.PathsDisagree: (400, {"param": "path", "code": "invalid_value"}),
    NoSuchPath: (400, {"param": "path", "code": "no_such_path"}),
}


def api_error_of(error: Exception) -> ApiError:
    """The response to an error. One that is not a `DipacoError` is internal and goes to the log."""
    if isinstance(error, ApiError):
        return error
    for kind, (status, fields) in RESPONSES.items():
        if isinstance(error, kind):
            return ApiError(status, str(error), **fields)
    if isinstance(error, DipacoError):
        return ApiError(500, str(error))
    log.error("an answer failed", exc_info=error)
    return ApiError(500, "Internal error; see the server's log.")


def body_error(problem: str, kind: Any) -> ApiError:
    """msgspec's "Expected `int`, got `str` - at `$.max_tokens`", as OpenAI would say it."""
    what, _, where = problem.partition(" - at `$")
    param = where.rstrip("`").lstrip(".") or None
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", what, re.DOTALL):
        name = f"{param}.{unknown[1]}" if param else unknown[1]
        message = f"Unrecognized request argument supplied: {name}. Leave it out."
        return ApiError(400, message, param=name, code="unknown_parameter")
    if missing := re.fullmatch(r"Object missing required field `(.*)`", what):
        name = f"{param}.{missing[1]}" if param else missing[1]
        message = f"You must provide a `{name}` parameter."
        return ApiError(400, message, param=name, code="missing_required_parameter")
    if param in ("tools", "functions"):
        return ApiError(400, no_tools(param), param=param, code="invalid_value")
    if param is None:
        return ApiError(400, f"The body is not a valid request: {what}.")
    if what.startswith("Invalid ") and (values := _values_at(kind, where)):
        what += f"; expected is {' or '.join(map(repr, values))}"
    return ApiError(400, f"Invalid value for `{param}`: {what}.", param=param, code="invalid_value")


def _values_at(kind: Any, where: str) -> list[str]:
    """The words that a field of a body of type `kind` may have, for the answer to a wrong one. The
    place is written like `.messages[0].role`. No words if any value may stand there, or no word.
    """
    found = list(alternatives(types.type_info(kind)))
    for name in re.findall(r"\.(\w+)|\[", where):
        found = [each for one in found for each in inside(one, name)]
    literals = (one.values for one in found if isinstance(one, types.LiteralType))
    return [value for values in literals for value in values if isinstance(value, str)]


def alternatives(info: types.Type) -> Iterator[types.Type]:
    """The types that a value may have."""
    if isinstance(info, types.UnionType):
        for each in info.types:
            yield from alternatives(each)
    else:
        yield info


def inside(info: types.Type, name: str) -> Iterator[types.Type]:
    """The alternatives of a field by its name, or of a list's items, a place without a name."""
    if isinstance(info, types.StructType) and name:
        if name == info.tag_field and isinstance(info.tag, str):
            yield types.LiteralType((info.tag,))
        for field in info.fields:
            if field.encode_name == name:
                yield from alternatives(field.type)
    elif isinstance(info, types.ListType) and not name:
        yield from alternatives(info.item_type)


def no_tools(param: str) -> str:
    return f"There are no tools. Leave `{param}` out, or use `response_format` for JSON."
