"""A request over HTTP by a client as thin as can be, which takes little from what it measures."""

import asyncio


async def send(
    address: tuple[str, int], what: str, content: bytes = b""
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Sends a request of JSON (`POST /v1/completions`) on a connection of its own, which the server
    closes after its answer; that is to be read, from its status line on.
    """
    reader, writer = await asyncio.open_connection(*address)
    head = (
        f"{what} HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    writer.write(head.encode() + content)
    return reader, writer
