"""Passes a stream on to another peer: for a sender that has no connection to a reducer.

The sender asks the backbone that leads, by a request of its own. From the reply on, its stream is
one to the reducer: what it writes goes there, and what the reducer answers comes back. Requests and
replies in it are signed by the two ends for each other, as on any stream: on the way nothing can be
changed, taken by another peer or sent again. `RELAYED_BYTES` of each direction are in memory.
"""

import asyncio
import contextlib
from typing import NamedTuple

from dipaco.swarm.network.link_meter import LinkMeter
from dipaco.swarm.network.messages import RelayRequest
from dipaco.swarm.network.side_by_side import first_of, side_by_side

RELAY = "relay"  # the method
RELAYED_BYTES = 64 << 10  # at a time


class Relay(NamedTuple):
    """Who passes a request on."""

    address: str
    name: str  # its session
    request: RelayRequest


class FarEnd(NamedTuple):
    """A stream to the reducer: in place of a payload, what a request to relay is answered with."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


async def pass_on(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    far: FarEnd,
    meter: LinkMeter,
    max_bytes: int,
) -> None:
    """Until either end hangs up, or has sent `max_bytes`."""
    there = _one_way(reader, far.writer, meter, max_bytes)
    back = _one_way(far.reader, writer, meter, max_bytes)
    async with side_by_side(there, back) as ways:
        await first_of(*ways)


async def _one_way(
    source: asyncio.StreamReader, sink: asyncio.StreamWriter, meter: LinkMeter, max_bytes: int
) -> None:
    left = max_bytes
    with contextlib.suppress(OSError):
        while left > 0 and (chunk := await source.read(min(RELAYED_BYTES, left))):
            left -= len(chunk)
            for direction in ("down", "up"):
                await meter.wait(direction, len(chunk))
            sink.write(chunk)
            await sink.drain()
