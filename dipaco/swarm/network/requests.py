"""What a handler of requests gets, and gives."""

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec

from dipaco.swarm.network.credentials import Certificate
from dipaco.swarm.network.relay import FarEnd


class PeerRequest(NamedTuple):
    """What a handler gets beside the body; the sender is authenticated."""

    sender: str  # name/session
    certificate: Certificate
    payload: bytes
    header: bytes = b""  # as it was signed: see `Wire.opened`
    source: str = ""  # the host that it dials from; empty = unknown


class SignedRequest(NamedTuple):
    """What a sender has signed; its payload is elsewhere."""

    sender: str  # name/session
    method: str
    payload_bytes: int
    payload_root: bytes  # of `merkle`


PeerReply = tuple[msgspec.Struct, bytes | memoryview | FarEnd]
RequestHandler = Callable[[Any, PeerRequest], Awaitable[PeerReply]]
Admits = Callable[[Any, PeerRequest], Awaitable[None]]  # raises why it does not
