"""`response_format` of a request -> the grammar that its answers obey, compiled beforehand."""

import msgspec

from dipaco.serving.decoding.grammar import ANY_OBJECT, Grammar, Grammars
from dipaco.serving.http.errors import ApiError
from dipaco.serving.http.response_format import ObjectFormat, ResponseFormat, SchemaFormat

PARAM = "response_format"


def wanted_grammar(grammars: Grammars, wanted: ResponseFormat | None) -> Grammar | None:
    """None = any text. Raises `ApiError`."""
    match wanted:
        case SchemaFormat():
            schema, param = wanted.json_schema.schema, f"{PARAM}.json_schema.schema"
            text = ANY_OBJECT if schema is None else msgspec.json.encode(schema).decode()
        case ObjectFormat():
            text, param = ANY_OBJECT, PARAM
        case _:
            return None
    try:
        grammar = grammars.compiled(text)
    except ImportError as error:
        raise ApiError(
            400,
            "This server cannot make structured output: the package `llguidance` is not installed "
            "there. Leave `response_format` out.",
            param=PARAM,
            code="not_installed",
        ) from error
    if grammar.problem:
        sentence = " ".join(grammar.problem.split())[:500].rstrip(".")
        raise ApiError(
            400,
            f"The JSON schema cannot be used: {sentence}. Change the schema.",
            param=param,
            code="invalid_json_schema",
        )
    return grammar
