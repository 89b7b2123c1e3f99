"""A file of requests in OpenAI's batch format, answered by the application that answers HTTP.

Rows are written to a file beside the output as they come, so an interrupted batch goes on. Its name
is the output's in the end.
"""

import asyncio
import contextlib
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Raw, Struct
from starlette.types import ASGIApp, Message

from dipaco.files import translate_os_errors, write_atomically
from dipaco.observe.progress import Progress
from dipaco.serving.http.errors import ApiError
from dipaco.serving.http.requests import decode

BUSY, BUSY_SECONDS = 429, 0.5


class InputLine(Struct, kw_only=True, forbid_unknown_fields=True):
    """A line of the input: a request."""

    custom_id: str
    method: Literal["POST"]
    url: Literal["/v1/completions", "/v1/chat/completions", "/v1/responses"]
    body: Raw


class _Fields(Struct):
    custom_id: str | None = None
    stream: bool | None = None


def answer_file(
    app: ASGIApp, release: str, given: Path, out: Path, at_once: int
) -> tuple[int, int]:
    """Answers a file of requests, so many at a time, from the release of this digest. Returns the
    number of rows, and how many of them are errors. After a `DiskFull`, `NotWritable` or `OSError`
    what was answered before is kept, and not answered again.
    """
    requests = list(_requests(given, release))
    partial = out.with_name(f"{out.name}.partial")
    rows = dict(_rows_in(partial, {name for name, _ in requests}))
    write_atomically(partial, b"".join(rows.values()))  # without a row that was cut off
    left = iter([(name, line) for name, line in requests if name not in rows])
    with translate_os_errors(partial), partial.open("ab") as stream:

        async def work(progress: Progress) -> None:
            for name, line in left:
                rows[name] = msgspec.json.encode({"id": name, **await _row(app, line)}) + b"\n"
                stream.write(rows[name])
                stream.flush()
                progress.advance()

        async def work_all() -> None:
            progress = Progress(given.name, len(requests), done_steps=len(rows), unit="requests")
            with progress as shown:
                await asyncio.gather(*(work(shown) for _ in range(at_once)))

        asyncio.run(work_all())
    write_atomically(out, b"".join(rows[name] for name, _ in requests))
    partial.unlink()
    answers = (json.loads(row)["response"] or {} for row in rows.values())
    return len(rows), sum(answer.get("status_code") != 200 for answer in answers)


def _requests(given: Path, release: str) -> Iterator[tuple[str, bytes]]:
    """Each line, and a name that says the release, the place in the file, and what it says."""
    for number, line in enumerate(given.read_bytes().splitlines()):
        if line.strip():
            name = hashlib.sha256(f"{release} {number} ".encode() + line).hexdigest()
            yield f"batch_req_{name[:32]}", line


def _rows_in(partial: Path, ids: set[str]) -> Iterator[tuple[str, bytes]]:
    """The rows of an interrupted batch that belong to this one."""
    for row in partial.read_bytes().splitlines(keepends=True) if partial.exists() else ():
        if row.endswith(b"\n") and (found := json.loads(row)["id"]) in ids:
            yield found, row


async def _row(app: ASGIApp, line: bytes) -> dict[str, Any]:
    """A row of the output. `error` is of a line that is no request, not of one that is refused."""
    try:
        request = decode(line, InputLine)
        if decode(bytes(request.body), _Fields).stream:
            raise ApiError(400, "A batch has no streams. Leave `stream` out.", param="body.stream")
    except ApiError as error:
        name = None
        with contextlib.suppress(ApiError):
            name = decode(line, _Fields).custom_id
        return {"custom_id": name, "response": None, "error": error.detail}
    while (answer := await _asked(app, request))["status_code"] == BUSY:
        await asyncio.sleep(BUSY_SECONDS)
    return {"custom_id": request.custom_id, "response": answer, "error": None}


async def _asked(app: ASGIApp, line: InputLine) -> dict[str, Any]:
    """Asks the application as its server would, for a client that stays."""
    body: list[Message] = [{"type": "http.request", "body": bytes(line.body)}]
    sent: list[Message] = []

    async def receive() -> Message:
        return body.pop() if body else await asyncio.Future()

    async def send(message: Message) -> None:
        sent.append(message)

    scope: dict[str, Any] = {"type": "http", "method": line.method, "path": line.url}
    scope |= {"headers": [(b"content-type", b"application/json")], "query_string": b""}
    await app(scope, receive, send)
    request_id = dict(sent[0]["headers"])[b"x-request-id"].decode()
    content = Raw(b"".join(message.get("body", b"") for message in sent))
    return {"status_code": sent[0]["status"], "request_id": request_id, "body": content}
