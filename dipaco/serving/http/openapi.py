"""The published OpenAPI document, made of the types of `protocol`, and the page that shows it."""

from html import escape
from typing import Any

import msgspec

import dipaco
from dipaco.serving.http import protocol as p
from dipaco.serving.http.responses_api import ResponsesReply, ResponsesRequest
from dipaco.serving.http.tokenizing import Detokenized, DetokenizeRequest, TokenizeRequest, Tokens

ERRORS = {
    "400": "The request is invalid; the message says why.",
    "401": "The API key is missing or wrong.",
    "404": "There is no such model.",
    "408": "The body came too slowly.",
    "413": "The body is too large.",
    "415": "The body is not JSON.",
    "429": "Too many requests are waiting; `Retry-After` says when to retry.",
    "503": "The path is not whole, or the server is stopping.",
}
# route: (summary, request, response)
POSTS: dict[str, tuple[str, type, type]] = {
    "/v1/completions": ("Continue prompts, each by one path.", p.CompletionRequest, p.Completion),
    "/v1/chat/completions": ("Answer a conversation.", p.ChatRequest, p.ChatCompletion),
    "/v1/responses": ("A chat, under newer names.", ResponsesRequest, ResponsesReply),
    "/v1/route": ("A prompt's path, and all paths' scores.", p.RouteRequest, p.RouteResponse),
    "/tokenize": ("A text, or a conversation, as token ids.", TokenizeRequest, Tokens),
    "/detokenize": ("Token ids as a text.", DetokenizeRequest, Detokenized),
}
GETS: dict[str, tuple[str, type]] = {
    "/v1/models": ("The served models, their levels and modules.", p.ModelList),
    "/v1/paths": ("The paths of a model, and what each was trained on.", p.PathList),
    "/healthz": ("Whether the process is alive and its device makes tokens.", p.HealthReply),
    "/health": ("The same, under the name that vLLM has.", p.HealthReply),
    "/version": ("The version of dipaco.", p.VersionReply),
    "/readyz": ("Whether it takes requests.", p.HealthReply),
}


def document(has_keys: bool) -> dict[str, Any]:
    """OpenAPI 3.1, as JSON values."""
    types = [type_ for _, *types in (*POSTS.values(), *GETS.values()) for type_ in types]
    types += [p.ErrorResponse, p.ChatChunk]
    found, components = msgspec.json.schema_components(
        types, ref_template="#/components/schemas/{name}"
    )
    schemas = dict(zip(types, found, strict=True))

    def content(type_: type) -> dict[str, Any]:
        return {"application/json": {"schema": schemas[type_]}}

    def answered(type_: type, description: str = "The answer.") -> dict[str, Any]:
        return {"description": description, "content": content(type_)}

    errors = {status: answered(p.ErrorResponse, why) for status, why in ERRORS.items()}
    paths: dict[str, Any] = {}
    for path, (summary, request, answer) in POSTS.items():
        responses = {"200": answered(answer), **errors}
        if path.endswith(("completions", "responses")):
            responses["200"]["content"]["text/event-stream"] = {"schema": {"type": "string"}}
        asked = {"required": True, "content": content(request)}
        paths[path] = {"post": {"summary": summary, "requestBody": asked, "responses": responses}}
    for path, (summary, answer) in GETS.items():
        responses = {"200": answered(answer)}
        if path == "/readyz":
            responses["503"] = answered(answer, "Not ready.")
        if path.startswith("/v1/"):
            responses["401"] = errors["401"]
        paths[path] = {"get": {"summary": summary, "responses": responses}}
        if path == "/v1/paths":
            responses["404"] = errors["404"]
            model = {"name": "model", "in": "query", "schema": {"type": "string"}}
            paths[path]["get"]["parameters"] = [model]
    info = {"title": "dipaco serve", "version": dipaco.__version__}
    body: dict[str, Any] = {"openapi": "3.1.0", "info": info, "paths": paths}
    body["components"] = {"schemas": components}
    if has_keys:
        body["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        body["security"] = [{"key": []}]
    return body


PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>dipaco serve</title>
<link rel="stylesheet" href="page.css">
<main><h1>What is answered</h1>{routes}<h1>Types</h1>{types}</main>
"""


def page(document: dict[str, Any]) -> str:
    """The document for a person to read: every route, and the fields of every type."""
    routes, types = "", ""
    for path, methods in document["paths"].items():
        for method, route in methods.items():
            body = route.get("requestBody", {"content": {}})["content"]
            answer = route["responses"]["200"]["content"]
            kinds = [_kind(each["application/json"]["schema"]) for each in (body, answer) if each]
            routes += f"<h3><code>{method.upper()} {path}</code></h3><p>{escape(route['summary'])}"
            routes += f" {' → '.join(kinds)}</p>"
    for name, schema in document["components"]["schemas"].items():
        types += f'<h3 id="{name}">{name}</h3><ul>'
        for field, kind in schema.get("properties", {}).items():
            is_needed = field in schema.get("required", ())
            types += f"<li><code>{field}</code>: {_kind(kind)}{', needed' if is_needed else ''}"
        types += "</ul>"
    return PAGE.format(routes=routes, types=types)


def _kind(schema: dict[str, Any]) -> str:
    """A type in words, as HTML."""
    if named := schema.get("$ref"):
        name = named.rpartition("/")[2]
        return f'<a href="#{name}">{name}</a>'
    if several := schema.get("anyOf"):
        return " or ".join(_kind(each) for each in several if each != {"type": "null"})
    if "enum" in schema:
        return " or ".join(escape(repr(value)) for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    bounds = [str(schema[each]) for each in ("minimum", "maximum") if each in schema]
    return " ".join([schema.get("type", "anything"), *([" to ".join(bounds)] if bounds else [])])
