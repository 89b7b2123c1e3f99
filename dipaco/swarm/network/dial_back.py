"""Finds the address at which a peer is reached from outside, by dialling it back from a backbone.

A machine knows its address in its own network. Behind a router that address means nothing outside,
or is another machine's. Behind a router that forwards the port, or in a cloud, the address outside
is unknown to the machine: it is the host that the backbone sees, with the port that the machine
listens on. So both are dialled, on a new connection (one that the peer keeps open shows nothing),
and the peer must answer with its session's name.
"""

import asyncio
import contextlib
import ipaddress
import re

from dipaco.swarm.errors import BadAddress
from dipaco.swarm.network.addresses import LAST_PORT, kind_of, may_be_host
from dipaco.swarm.network.libp2p import Libp2p
from dipaco.swarm.network.messages import Ack, DialBackRequest
from dipaco.swarm.network.wire import PEER_ERRORS, PeerRequest, Wire

DIAL_BACK_SECONDS = 3.0  # time for a newcomer to answer
# What libp2p says first on every connection (multistream-select 1.0.0): length, line.
MULTISTREAM = b"\x13/multistream/1.0.0\n"
_LIBP2P = re.compile("(/(?:ip4|ip6|dns|dns4|dns6))/([^/]+)(/tcp/([0-9]+)(?:/.*)?)")


async def reached_address(wire: Wire, announced: str, request: PeerRequest) -> str | None:
    """The address at which a newcomer answers, or None if it is not reached.

    Args:
      wire: the backbone's wire.
      announced: the address that the newcomer believes to have.
      request: the newcomer's request to join.
    """
    seen_host = request.source
    if isinstance(wire.transport, Libp2p):
        seen_host = await wire.transport.seen_host(announced)
    candidates = list(dict.fromkeys((seen_address(announced, seen_host), announced)))
    answers = await asyncio.gather(*(_answers(wire, one, request.sender) for one in candidates))
    return next((one for one, it_does in zip(candidates, answers, strict=True) if it_does), None)


def seen_address(announced: str, seen_host: str) -> str:
    """The port that a peer listens on, at the host that others see."""
    host = str(_ip(seen_host) or "")
    found = _LIBP2P.fullmatch(announced)
    if not host or (found is None and announced.startswith("/")):
        return announced
    if found is not None:
        kind = "/ip6" if ":" in host else "/ip4"
        return f"{kind}/{host}{found[3]}"
    scheme, slashes, place = announced.partition("://")
    port = place.rpartition(":")[2]
    return f"{scheme}{slashes}[{host}]:{port}" if ":" in host else f"{scheme}{slashes}{host}:{port}"


async def _answers(wire: Wire, address: str, newcomer: str) -> bool:
    try:
        async with asyncio.timeout(DIAL_BACK_SECONDS):
            if not kind_of(address) and (found := _LIBP2P.fullmatch(address)) is not None:
                if not may_be_host(found[2]) or int(found[4]) > LAST_PORT:
                    raise BadAddress(given=address)
                # libp2p would use the connection that the newcomer has opened.
                await check_speaks_libp2p(found[2], int(found[4]))
            await wire.ask(
                address,
                "dial_back",
                DialBackRequest(),
                Ack,
                within_seconds=DIAL_BACK_SECONDS,
                recipient=newcomer,
            )
    except (*PEER_ERRORS, BadAddress, EOFError):
        return False
    return True


async def check_speaks_libp2p(host: str, port: int) -> None:
    """Raises OSError, EOFError: it does not, on a new connection."""
    reader, writer = await asyncio.open_connection(host, port)
    with contextlib.closing(writer):
        writer.write(MULTISTREAM)
        if await reader.readexactly(len(MULTISTREAM)) != MULTISTREAM:
            raise ConnectionRefusedError(f"what answers at {host}:{port} is not libp2p")


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    with contextlib.suppress(ValueError):
        found = ipaddress.ip_address(host.partition("%")[0])
        return getattr(found, "ipv4_mapped", None) or found
    return None
