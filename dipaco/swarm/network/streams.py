"""What every transport of streams between peers has."""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from typing import Protocol

StreamHandler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
STREAM_BYTES = 256 << 10  # read ahead
# To connect by TCP. What asks for it is sent again after 1, 3, 7, 15 and more seconds: where a link
# was down and is back, another attempt is answered sooner.
CONNECT_SECONDS = 4.0
# Of a connection on which nothing is sent: after how long its other end is asked whether it is
# there, how often, and how many times without an answer until it is closed.
KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}


class Transport(Protocol):
    """Streams to and from peers."""

    address: str | None  # where others reach this peer; None = a client, which only dials out

    async def open(self, address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Raises OSError where there is no peer."""
        ...

    def seen_from(self, writer: asyncio.StreamWriter) -> str:
        """The host that the peer of a served stream dials from; empty = unknown."""
        ...

    def now_seen_at(self, host: str) -> None:
        """A backbone says which host it has seen this machine dial from."""
        ...

    async def close(self) -> None: ...


def keep_alive(writer: asyncio.StreamWriter) -> None:
    """A machine at the other end that vanishes without a goodbye is noticed within a minute. How
    soon is the system's own choice where it cannot be set.
    """
    connection = writer.get_extra_info("socket")
    if connection is None:  # it is lost already
        return
    with contextlib.suppress(OSError):  # it is closed already
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE.items():
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
