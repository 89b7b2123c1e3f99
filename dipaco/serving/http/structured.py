"""`response_format` of a request -> the grammar that its answers obey, compiled beforehand."""

import asyncio
from typing import NamedTuple

import msgspec

from dipaco.serving.decoding.grammar import ANY_OBJECT, Grammar, Grammars
from dipaco.serving.fair_threads import FairThreads
from dipaco.serving.http.errors import ApiError
from dipaco.serving.http.response_format import ObjectFormat, ResponseFormat, SchemaFormat

PARAM = "response_format"
COMPILING = 2  # schemas at once
COMPILE_SECONDS = 30.0  # that a request waits for its own


class WantedSchema(NamedTuple):
    """The schema of a request."""

    text: str  # JSON
    param: str  # the field that it comes from


def wanted_schema(wanted: ResponseFormat | None) -> WantedSchema | None:
    """None = any text."""
    match wanted:
        case SchemaFormat():
            schema, param = wanted.json_schema.schema, f"{PARAM}.json_schema.schema"
            text = ANY_OBJECT if schema is None else msgspec.json.encode(schema).decode()
            return WantedSchema(text, param)
        case ObjectFormat():
            return WantedSchema(ANY_OBJECT, PARAM)
    return None


class SchemaCompiler:
    """Compiles the schemas of requests in threads of its own, which clients take in turn: no other
    request waits for those that take seconds. Used in one event loop.
    """

    def __init__(self, grammars: Grammars):
        self._grammars = grammars
        self._threads = FairThreads(COMPILING, "schemas")

    async def compiled(self, wanted: WantedSchema, client: str) -> Grammar:
        """Raises `ApiError`, `NoGrammar`."""
        grammar = self._grammars.ready(wanted.text)
        if grammar is None:
            grammar = await self._newly_compiled(wanted, client)
        if grammar.problem:
            sentence = " ".join(grammar.problem.split())[:500].rstrip(".")
            raise ApiError(
                400,
                f"The JSON schema cannot be used: {sentence}. Change the schema.",
                param=wanted.param,
                code="invalid_json_schema",
            )
        return grammar

    async def _newly_compiled(self, wanted: WantedSchema, client: str) -> Grammar:
        try:
            async with asyncio.timeout(COMPILE_SECONDS):
                return await self._threads.run(client, self._grammars.compiled, wanted.text)
        except TimeoutError as error:
            raise ApiError(
                503,
                f"The JSON schema was not compiled within {COMPILE_SECONDS:.0f} s: it is large, or "
                "others before it are. Try again later, or make it smaller.",
                param=wanted.param,
                code="schema_not_compiled",
                retry_after_seconds=5,
            ) from error
        except ImportError as error:
            raise ApiError(
                400,
                "This server cannot make structured output: the package `llguidance` is not "
                "installed there. Leave `response_format` out.",
                param=PARAM,
                code="not_installed",
            ) from error
