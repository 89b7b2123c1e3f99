"""The arguments and results of request handlers."""

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec

from dipaco.swarm.network.credentials import Certificate


class PeerRequest(NamedTuple):
    """A request without its body. The sender is authenticated."""

    sender: str  # name/session
    certificate: Certificate
    payload: bytes
    source: str = ""  # the host from which it dials; empty = unknown


PeerReply = tuple[msgspec.Struct, bytes | memoryview]
RequestHandler = Callable[[Any, PeerRequest], Awaitable[PeerReply]]
Admits = Callable[[Any, PeerRequest], Awaitable[None]]  # raises the reason if it refuses
