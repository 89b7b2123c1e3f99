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

from dipaco.swarm.errors import BadAddress
from dipaco.swarm.network.messages import Ack, DialBackRequest
from dipaco.swarm.network.wire import PEER_ERRORS, PeerRequest, Wire

DIAL_BACK_SECONDS = 3.0  # time for a newcomer to answer


async def reached_address(wire: Wire, announced: str, request: PeerRequest) -> str | None:
    """The address at which a newcomer answers, or None if it is not reached.

    Args:
      wire: the backbone's wire.
      announced: the address that the newcomer believes to have.
      request: the newcomer's request to join.
    """
    candidates = list(dict.fromkeys((seen_address(announced, request.source), announced)))
    answers = await asyncio.gather(*(_answers(wire, one, request.sender) for one in candidates))
    return next((one for one, it_does in zip(candidates, answers, strict=True) if it_does), None)


def seen_address(announced: str, seen_host: str) -> str:
    """The port that a peer listens on, at the host that others see."""
    host = str(_ip(seen_host) or "")
    if not host:
        return announced
    scheme, slashes, place = announced.partition("://")
    port = place.rpartition(":")[2]
    return f"{scheme}{slashes}[{host}]:{port}" if ":" in host else f"{scheme}{slashes}{host}:{port}"


async def _answers(wire: Wire, address: str, newcomer: str) -> bool:
    try:
        async with asyncio.timeout(DIAL_BACK_SECONDS):
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


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    with contextlib.suppress(ValueError):
        found = ipaddress.ip_address(host.partition("%")[0])
        return getattr(found, "ipv4_mapped", None) or found
    return None
