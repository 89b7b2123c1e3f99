"""Sends a message over a stream: its header, then its payload chunk by chunk. A payload keeps to
the link's limit. Each chunk has a time limit, so that a peer which stops sending or taking is given
up.
"""

import asyncio
import time

from dipaco.swarm.errors import BadMessage
from dipaco.swarm.network.envelope import Envelope
from dipaco.swarm.network.link_meter import LinkMeter
from dipaco.swarm.network.messages import digest

CHUNK_SECONDS = 60.0  # limit for each chunk of a payload, in both directions
CHUNK_BYTES = 128 << 10  # payload between two checks of the limits


async def send(
    writer: asyncio.StreamWriter, header: bytes, payload: bytes | memoryview, meter: LinkMeter
) -> None:
    """Raises OSError, such as TimeoutError, if the peer does not take the message."""
    started = time.monotonic()
    meter.charge("up", len(header))
    writer.write(len(header).to_bytes(4, "big") + header)
    for offset in range(0, len(payload), CHUNK_BYTES):
        chunk = payload[offset : offset + CHUNK_BYTES]
        await meter.wait("up", len(chunk))
        writer.write(bytes(chunk))
        await _drained(writer)
    await _drained(writer)
    meter.sent(len(header) + len(payload), time.monotonic() - started)


async def receive_payload(
    reader: asyncio.StreamReader,
    envelope: Envelope,
    meter: LinkMeter,
    max_bytes: int,
    *,
    keeps: bool = True,
) -> bytes:
    """The payload that an envelope announces; empty unless it is kept.

    Raises:
      OSError, asyncio.IncompleteReadError: it does not arrive.
      BadMessage: it has more than `max_bytes`, or differs from the signed payload.
    """
    num_bytes = envelope.payload_bytes
    if num_bytes > max_bytes:
        raise BadMessage(problem=f"it would bring {num_bytes} bytes")
    content, started = bytearray(), time.monotonic()
    for offset in range(0, num_bytes, CHUNK_BYTES):
        async with asyncio.timeout(CHUNK_SECONDS):
            chunk = await reader.readexactly(min(CHUNK_BYTES, num_bytes - offset))
        await meter.wait("down", len(chunk))
        content += chunk if keeps else b""
    meter.received(num_bytes, time.monotonic() - started)
    if keeps and digest(bytes(content)) != envelope.payload_digest:
        raise BadMessage(problem="its payload is not the one that was signed")
    return bytes(content)


async def _drained(writer: asyncio.StreamWriter) -> None:
    """Waits until data is sent. A peer that takes nothing would hold memory, and is cut off."""
    try:
        async with asyncio.timeout(CHUNK_SECONDS):
            await writer.drain()
    except TimeoutError:
        writer.transport.abort()
        raise
