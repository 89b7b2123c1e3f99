"""`response_format` of a request -> the grammar that its answers obey, compiled beforehand."""

import asyncio
import threading
from concurrent.futures import Future
from typing import NamedTuple

import msgspec

from dipaco.serving.decoding.grammar import ANY_OBJECT, Grammar, Grammars
from dipaco.serving.fairness import FairThreads
from dipaco.serving.http.errors import ApiError
from dipaco.serving.http.protocol import ObjectFormat, ResponseFormat, SchemaFormat

PARAM = "response_format"
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
            schema, param = wanted.json_schema.schema, f"{PARAM}.json_schema.schema"
            text = ANY_OBJECT if schema is None else msgspec.json.encode(schema).decode()
            return WantedSchema(text, param)
        case ObjectFormat():
            return WantedSchema(ANY_OBJECT, PARAM)
    return None


class SchemaCompiler:
    """Compiles the schemas of requests in separate threads, which clients share fairly: no other
    request waits for a schema that takes seconds. One that many bring at once takes one thread. It
    is used in one event loop.
    """

    def __init__(self, grammars: Grammars):
        self._grammars = grammars
        self._threads = FairThreads(COMPILING, "schemas")
        self._lock = threading.Lock()
        self._begun: dict[str, Future[Grammar]] = {}  # keys are schemas that a thread compiles now

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
                begun = await self._threads.run(client, self._compile_or_join, wanted.text)
                return await asyncio.wrap_future(begun)
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

    def _compile_or_join(self, schema: str) -> Future[Grammar]:
        """Runs in a thread. Returns or raises like `Grammars.compiled`. If another thread compiles
        the schema now, that one's future is returned at once.
        """
        with self._lock:
            if schema in self._begun:
                return self._begun[schema]
            mine = self._begun[schema] = Future()
            mine.set_running_or_notify_cancel()  # none of those who wait can cancel it
        try:
            grammar = self._grammars.compiled(schema)
        except BaseException as error:
            self._taken_out(schema).set_exception(error)
        else:
            self._taken_out(schema).set_result(grammar)
        return mine

    def _taken_out(self, schema: str) -> Future[Grammar]:
        """The future of a schema that is compiled. It is taken out before it ends, so that who asks
        after a failure compiles the schema again and does not join it.
        """
        with self._lock:
            return self._begun.pop(schema)
