"""What every transport of streams between peers has."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

StreamHandler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
STREAM_BYTES = 256 << 10  # read ahead
# To connect by TCP. What asks for it is sent again after 1, 3, 7, 15 and more seconds: where a link
# was down and is back, another attempt is answered sooner.
CONNECT_SECONDS = 4.0


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
