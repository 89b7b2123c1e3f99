"""`response_format` of a request -> the grammar that its answers obey, compiled beforehand."""

import asyncio
import functools
from typing import NamedTuple

import msgspec

from dipaco.serving.decoding.grammar import ANY_OBJECT, Grammar, Grammars
from dipaco.serving.fairness import FairThreads
from dipaco.serving.http.errors import ApiError
from dipaco.serving.http.protocol import ObjectFormat, ResponseFormat, SchemaFormat

COMPILING = 2  # schemas at once
COMPILE_SECONDS = 30.0  # time that a request waits for its schema


class WantedSchema(NamedTuple):
    """The schema of a request."""

    text: str  # JSON
    param: str  # the field that it comes from


def wanted_schema(wanted: ResponseFormat | None) -> WantedSchema | None:
    """None = any text."""
    match wanted:
        case SchemaFormat():
            schema, param = wanted.json_schema.schema, "response_format.json_schema.schema"
            text = ANY_OBJECT if schema is None else msgspec.json.encode(schema).decode()
            return WantedSchema(text, param)
        case ObjectFormat():
            return WantedSchema(ANY_OBJECT, "response_format")
    return None


class SchemaCompiler:
    """Compiles the schemas of requests in separate threads, which clients share fairly: no other
    request waits for a schema that takes seconds. One that many bring at once takes one thread. It
    is used in one event loop.
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
            problem = f"The JSON schema cannot be used: {sentence}. Change the schema."
            raise ApiError(400, problem, param=wanted.param, code="invalid_json_schema")
        return grammar

    async def _newly_compiled(self, wanted: WantedSchema, client: str) -> Grammar:
        try:
            async with asyncio.timeout(COMPILE_SECONDS):
                compile_it = functools.partial(self._grammars.compiled, wanted.text)
                return await self._threads.run_shared(client, wanted.text, compile_it)
        except TimeoutError as error:
            problem = f"The JSON schema was not compiled within {COMPILE_SECONDS:.0f} s: it is"
            problem += " large, or others before it are. Try again later, or make it smaller."
            told = {"code": "schema_not_compiled", "retry_after_seconds": 5}
            raise ApiError(503, problem, param=wanted.param, **told) from error
        except ImportError as error:
            problem = "This server cannot make structured output: the package `llguidance` is not"
            problem += " installed there. Leave `response_format` out."
            param = "response_format"
            raise ApiError(400, problem, param=param, code="not_installed") from error
