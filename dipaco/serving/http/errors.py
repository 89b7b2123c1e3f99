"""Every error as OpenAI writes it: `{"error": {message, type, param, code}}`, and its status."""

import logging
from typing import Any

import msgspec

from dipaco.errors import DipacoError, NoSuchPath
from dipaco.runs.errors import NotAllPaths
from dipaco.serving.errors import (
    ContextTooLong,
    EmptyPrompt,
    GrammarFailed,
    LoopStopping,
    NoGrammar,
    NoRoomForPath,
    NoSuchModel,
    NoUpstream,
    PathCacheTooSmall,
    PathElsewhere,
    QueueFull,
)
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
    LoopStopping: (503, {"code": "stopping", "retry_after_seconds": 5}),
    NoUpstream: (503, {"code": "no_upstream", "retry_after_seconds": 5}),
    NotAllPaths: (503, {"param": "prompt", "code": "path_not_whole"}),
    ObjectMissing: (503, {"param": "path", "code": "path_not_whole"}),
    ObjectDamaged: (503, {"param": "path", "code": "path_not_whole"}),
    StoreFault: (503, {"code": "path_not_there", "retry_after_seconds": 5}),
    NoRoomForPath: (503, {"code": "path_not_there", "retry_after_seconds": 5}),
    PathCacheTooSmall: (503, {"param": "path", "code": "path_too_large"}),
    PathElsewhere: (404, {"param": "model", "code": "path_elsewhere"}),
    NoSuchModel: (404, {"param": "model", "code": "model_not_found"}),
    GrammarFailed: (400, {"param": "response_format", "code": "grammar_failed"}),
    NoGrammar: (400, {"param": "response_format", "code": "no_structured_output"}),
    EmptyPrompt: (400, {"param": "prompt"}),
    ContextTooLong: (400, {"param": "prompt", "code": "context_length_exceeded"}),
    NoSuchPath: (400, {"param": "path", "code": "no_such_path"}),
}


def api_error_of(error: Exception) -> ApiError:
    """The response to an error. One that is not a `DipacoError` is internal and goes to the log."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, QueueFull):
        seconds = int(str(error.values["retry_after_seconds"]))
        return ApiError(429, str(error), code="queue_full", retry_after_seconds=seconds)
    for kind, (status, fields) in RESPONSES.items():
        if isinstance(error, kind):
            return ApiError(status, str(error), **fields)
    if isinstance(error, DipacoError):
        return ApiError(500, str(error))
    log.error("an answer failed", exc_info=error)
    return ApiError(500, "Internal error; see the server's log.")
