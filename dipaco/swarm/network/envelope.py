"""A message as it is sealed and sent, and the reading of its header."""

import asyncio
from typing import Annotated, TypeVar

import msgspec

from dipaco.swarm.errors import BadMessage
from dipaco.swarm.network.credentials import Seal

Body = TypeVar("Body", bound=msgspec.Struct)


class Envelope(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The signed part of a message."""

    method: str
    body: bytes
    payload_bytes: Annotated[int, msgspec.Meta(ge=0)]
    payload_digest: bytes
    in_reply_to: bytes  # the nonce of the request; empty in a request


class Header(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Everything before a payload."""

    seal: Seal
    envelope: bytes


async def read_header(reader: asyncio.StreamReader, max_bytes: int) -> Header:
    """Raises `BadMessage`, OSError, asyncio.IncompleteReadError."""
    size = int.from_bytes(await reader.readexactly(4), "big")
    if size > max_bytes:
        raise BadMessage(problem=f"its header has {size} bytes")
    return decoded(await reader.readexactly(size), Header)


def decoded(content: bytes, kind: type[Body]) -> Body:
    """Raises `BadMessage`."""
    try:
        return msgspec.msgpack.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadMessage(problem=str(error)) from error
