"""Bytes of a body -> a request, or a sentence that says what is wrong with it."""

import asyncio
import re
from typing import TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from dipaco.serving.http.refusals import Refusal

Body = TypeVar("Body")
BODY_SECONDS = 20.0  # for a body to come; who is slower would hold up a server that is told to end


async def read_body(request: Request, most_bytes: int, kind: type[Body]) -> Body:
    """The body as a `kind`.

    Raises:
      Refusal: it is too large (413), not sent as JSON (415), or not such a request (400).
    """
    sent_as = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    # A page of another site can send a form unasked, but JSON only if we allowed it (we do not).
    if sent_as != "application/json":
        raise Refusal(
            415,
            f"The body was sent as `{sent_as[:100]}`. Send JSON: `Content-Type: application/json`.",
        )
    return decode(await _read(request, most_bytes), kind)


def decode(content: bytes, kind: type[Body]) -> Body:
    """Raises `Refusal` in OpenAI's words."""
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.ValidationError as error:
        raise _said_plainly(str(error)) from error
    except UnicodeDecodeError as error:
        raise Refusal(400, "The body is not UTF-8. Encode it as UTF-8.") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise Refusal(
            400,
            f"We could not parse the JSON body of your request: {error}. Check it as JSON.",
        ) from error


async def _read(request: Request, most_bytes: int) -> bytes:
    content = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                content += chunk
                if len(content) > most_bytes:
                    raise Refusal(
                        413,
                        f"The body is larger than {most_bytes:,} bytes. Send less at once.",
                        code="body_too_large",
                    )
    except TimeoutError as error:
        problem = f"The body was not whole after {BODY_SECONDS:.0f} s. Send it again, faster."
        raise Refusal(408, problem, code="body_too_slow") from error
    except ClientDisconnect as error:
        raise Refusal(400, "The connection was closed before the body was whole.") from error
    return bytes(content)


def _said_plainly(problem: str) -> Refusal:
    """msgspec's "Expected `int`, got `str` - at `$.max_tokens`", as OpenAI would say it."""
    what, _, where = problem.partition(" - at `$")
    param = where.rstrip("`").lstrip(".") or None
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", what, re.DOTALL):
        name = f"{param}.{unknown[1]}" if param else unknown[1]
        message = f"Unrecognized request argument supplied: {name}. Leave it out."
        return Refusal(400, message, param=name, code="unknown_parameter")
    if missing := re.fullmatch(r"Object missing required field `(.*)`", what):
        name = f"{param}.{missing[1]}" if param else missing[1]
        message = f"You must provide a `{name}` parameter."
        return Refusal(400, message, param=name, code="missing_required_parameter")
    if param in ("presence_penalty", "frequency_penalty"):
        message = f"`{param}` is not supported. Leave it out; `repetition_penalty` is."
        return Refusal(400, message, param=param, code="invalid_value")
    if param is None:
        return Refusal(400, f"The body is not such a request: {what}.")
    return Refusal(400, f"Invalid value for `{param}`: {what}.", param=param, code="invalid_value")
