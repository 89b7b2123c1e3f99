"""The published OpenAPI document, made of the types that the server reads and writes."""

from typing import Any

import msgspec

import dipaco
from dipaco.serving.http import protocol

REFUSED = {
    "400": "The request is not one that can be answered; the message says why.",
    "401": "The API key is missing or wrong.",
    "404": "There is no such model.",
    "408": "The body was too slow.",
    "413": "The body is too large.",
    "415": "The body is not JSON.",
    "429": "Too many requests are waiting; `Retry-After` says when to come again.",
    "503": "The path that was asked for is not whole, or the server is stopping.",
}
# path: (what it is for, request, answer)
POSTS: dict[str, tuple[str, type, type]] = {
    "/v1/completions": (
        "Continue one or several prompts; each goes to one path of the model.",
        protocol.CompletionRequest,
        protocol.Completion,
    ),
    "/v1/chat/completions": (
        "Answer a conversation; where the tokenizer has a chat template.",
        protocol.ChatRequest,
        protocol.ChatCompletion,
    ),
    "/v1/route": (
        "Which path takes a prompt, and the router's scores.",
        protocol.RouteRequest,
        protocol.RouteResponse,
    ),
}
GETS: dict[str, tuple[str, type]] = {
    "/v1/models": ("The model that is served, its levels and modules.", protocol.ModelList),
    "/healthz": ("Whether the process is alive.", protocol.HealthReply),
    "/readyz": ("Whether it takes requests.", protocol.HealthReply),
}


def document(has_keys: bool) -> dict[str, Any]:
    """OpenAPI 3.1, as JSON values."""
    types = [type_ for _, *types in (*POSTS.values(), *GETS.values()) for type_ in types]
    types += [protocol.ErrorResponse, protocol.ChatChunk]
    found, components = msgspec.json.schema_components(
        types, ref_template="#/components/schemas/{name}"
    )
    schemas = dict(zip(types, found, strict=True))

    def content(type_: type) -> dict[str, Any]:
        return {"application/json": {"schema": schemas[type_]}}

    refused = {
        status: {"description": said, "content": content(protocol.ErrorResponse)}
        for status, said in REFUSED.items()
    }
    paths: dict[str, Any] = {}
    for path, (said, request, answer) in POSTS.items():
        told = content(answer)
        if path != "/v1/route":
            told["text/event-stream"] = {"schema": {"type": "string"}}
        paths[path] = {
            "post": {
                "summary": said,
                "requestBody": {"required": True, "content": content(request)},
                "responses": {"200": {"description": "The answer.", "content": told}, **refused},
            }
        }
    for path, (said, answer) in GETS.items():
        responses = {"200": {"description": "The answer.", "content": content(answer)}}
        if path == "/readyz":
            responses["503"] = {"description": "Not now.", "content": content(answer)}
        if path == "/v1/models":
            responses["401"] = refused["401"]
        paths[path] = {"get": {"summary": said, "responses": responses}}
    body = {
        "openapi": "3.1.0",
        "info": {"title": "dipaco serve", "version": dipaco.__version__},
        "paths": paths,
        "components": {"schemas": components},
    }
    if has_keys:
        body["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        body["security"] = [{"key": []}]
    return body
