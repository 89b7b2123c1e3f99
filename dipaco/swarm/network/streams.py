"""The contract of all transports, which carry streams between peers."""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from typing import Protocol

StreamHandler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
STREAM_BYTES = 256 << 10  # read-ahead of a stream
# Limit for a TCP connection. The system repeats its request after 1, 3, 7, 15 and more seconds, so
# a new attempt is answered sooner once a link is back.
CONNECT_SECONDS = 4.0
# Probes of a silent connection: seconds until the first, seconds between two, and the number
# without an answer after which it is closed.
KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}


class Transport(Protocol):
    """Streams to and from peers."""

    # address at which others reach this peer; None = a client, which only dials out
    address: str | None

    async def open(self, address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Raises OSError if no peer is there."""
        ...

    def seen_from(self, writer: asyncio.StreamWriter) -> str:
        """The host from which the peer of a served stream dials; empty = unknown."""
        ...

    def now_seen_at(self, host: str) -> None:
        """Notes the host from which a backbone has seen this machine dial."""
        ...

    async def close(self) -> None: ...


def keep_alive(writer: asyncio.StreamWriter) -> None:
    """Makes the system notice within a minute that the other machine has vanished. If the delay
    cannot be set, the system chooses it.
    """
    connection = writer.get_extra_info("socket")
    if connection is None:  # it is lost already
        return
    with contextlib.suppress(OSError):  # it is closed already
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE.items():
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
