"""The bytes of a request's body -> a value of a type in `protocol`, or an `ApiError`.

`read_body` runs in the event loop. What takes long is done in one other thread.
"""

import asyncio
import concurrent.futures
import gzip
import io
import re
import zlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec
import msgspec.inspect as types
from starlette.requests import ClientDisconnect, Request

from dipaco.serving.http.errors import ApiError

Body = TypeVar("Body")
LARGE_BYTES = 1 << 16  # of a body that is decoded in another thread
_large_bodies = concurrent.futures.ThreadPoolExecutor(1, "large bodies")
BODY_SECONDS = 20.0  # for a body to arrive: a slower client would delay a server that is stopping


async def read_body(request: Request, max_bytes: int, kind: type[Body]) -> Body:
    """Reads and decodes the body of a request.

    Raises:
      ApiError: it is too large (413), not sent as JSON, or compressed by something else than gzip
        (415), or not such a request (400).
    """
    sent_as = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    # Another site's page can send a form without permission, but JSON only with ours (not given).
    if sent_as != "application/json":
        raise ApiError(
            415,
            f"The body was sent as `{sent_as[:100]}`. Send JSON: `Content-Type: application/json`.",
        )
    content = await _read(request, max_bytes)
    match request.headers.get("content-encoding", "").strip().lower():
        case "gzip" | "x-gzip":
            content = await _apart(_unzipped, content, max_bytes)
        case encoding if encoding not in ("", "identity"):
            problem = f"The body is compressed as `{encoding[:100]}`. Send it as it is, or by gzip."
            raise ApiError(415, problem)
    if len(content) > LARGE_BYTES:
        return await _apart(decode, content, kind)
    return decode(content, kind)


async def _apart(function: Callable[..., Body], *args: object) -> Body:
    """Calls a function in the one thread for large bodies: they wait for each other."""
    return await asyncio.get_running_loop().run_in_executor(_large_bodies, function, *args)


def _unzipped(content: bytes, max_bytes: int) -> bytes:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as stream:
            unzipped = stream.read(max_bytes + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ApiError(400, f"The body is no gzip: {error}. Compress it again.") from error
    if len(unzipped) > max_bytes:
        raise _too_large(max_bytes)
    return unzipped


def decode(content: bytes, kind: type[Body]) -> Body:
    """Raises `ApiError` in OpenAI's words."""
    content = content.removeprefix(b"\xef\xbb\xbf")  # a byte order mark
    try:
        try:
            return msgspec.json.decode(content, type=kind)
        except msgspec.ValidationError as error:
            if "got `float`" not in str(error):
                raise
            return msgspec.convert(_with_integers(msgspec.json.decode(content)), kind)
    except msgspec.ValidationError as error:
        raise _api_error(str(error), kind) from error
    except UnicodeDecodeError as error:
        raise ApiError(400, "The body is not UTF-8. Encode it as UTF-8.") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise ApiError(
            400,
            f"We could not parse the JSON body of your request: {error}. Check it as JSON.",
        ) from error


def _with_integers(value: Any) -> Any:
    """The value with 4 for 4.0, which is an integer to JSON Schema and to some clients."""
    if isinstance(value, dict):
        return {name: _with_integers(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_with_integers(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


async def _read(request: Request, max_bytes: int) -> bytes:
    content = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                content += chunk
                if len(content) > max_bytes:
                    raise _too_large(max_bytes)
    except TimeoutError as error:
        problem = f"The body was incomplete after {BODY_SECONDS:.0f} s. Send it again, faster."
        raise ApiError(408, problem, code="body_too_slow") from error
    except ClientDisconnect as error:
        raise ApiError(400, "The connection was closed before the body was complete.") from error
    return bytes(content)


def _too_large(max_bytes: int) -> ApiError:
    problem = f"The body is larger than {max_bytes:,} bytes. Send less at once."
    return ApiError(413, problem, code="body_too_large")


def _api_error(problem: str, kind: type[Body]) -> ApiError:
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
    if what.startswith("Invalid ") and (values := values_at(kind, where)):
        what += f"; expected is {' or '.join(map(repr, values))}"
    return ApiError(400, f"Invalid value for `{param}`: {what}.", param=param, code="invalid_value")


def values_at(kind: Any, where: str) -> list[str]:
    """The words that a field of a body of type `kind` may have, for the answer to a wrong one. The
    place is written like `.messages[0].role`. No words if any value may stand there, or no word.
    """
    found = list(_alternatives(types.type_info(kind)))
    for name in re.findall(r"\.(\w+)|\[", where):
        found = [each for one in found for inner in _inside(one, name) for each in inner]
    literals = (one.values for one in found if isinstance(one, types.LiteralType))
    return [value for values in literals for value in values if isinstance(value, str)]


def _alternatives(info: types.Type) -> Iterator[types.Type]:
    if isinstance(info, types.UnionType):
        for each in info.types:
            yield from _alternatives(each)
    else:
        yield info


def _inside(info: types.Type, name: str) -> Iterator[Iterator[types.Type]]:
    """The alternatives of a field by its name, or of a list's items, a place without a name."""
    if isinstance(info, types.StructType) and name:
        if name == info.tag_field and isinstance(info.tag, str):
            yield iter([types.LiteralType((info.tag,))])
        for field in info.fields:
            if field.encode_name == name:
                yield _alternatives(field.type)
    elif isinstance(info, types.ListType) and not name:
        yield _alternatives(info.item_type)


def no_tools(param: str) -> str:
    return f"There are no tools. Leave `{param}` out, or use `response_format` for JSON."
