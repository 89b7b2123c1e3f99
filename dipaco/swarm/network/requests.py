"""The arguments and results of request handlers."""

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec

from dipaco.swarm.network.credentials import Certificate
from dipaco.swarm.network.relay import FarEnd


class PeerRequest(NamedTuple):
    """A request without its body. The sender is authenticated."""

    sender: str  # name/session
    certificate: Certificate
    payload: bytes
    header: bytes = b""  # the signed header: see `Wire.opened`
    source: str = ""  # the host from which it dials; empty = unknown


class SignedRequest(NamedTuple):
    """The signed part of a request. Its payload is elsewhere."""

    sender: str  # name/session
    method: str
    payload_bytes: int
    payload_root: bytes  # a root of `merkle`


PeerReply = tuple[msgspec.Struct, bytes | memoryview | FarEnd]
RequestHandler = Callable[[Any, PeerRequest], Awaitable[PeerReply]]
Admits = Callable[[Any, PeerRequest], Awaitable[None]]  # raises the reason if it refuses
