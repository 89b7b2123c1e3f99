"""Addresses: `HOST:PORT`. A host of version 6 stands in brackets, as in a URL."""

import contextlib
import ipaddress
import re
import socket
from typing import NamedTuple

from dipaco.errors import BadSetting, CannotListen
from dipaco.swarm.errors import BadAddress

LAST_PORT = 65535
ANYWHERE = ("", "0.0.0.0", "::")  # listens on all of a machine's addresses

_ADDRESS = re.compile(r"(\[[^\[\]/]*\]|[^:/\[\]]*):([0-9]{1,5})")


class SocketAddress(NamedTuple):
    """The address on which a peer listens."""

    host: str  # without brackets
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse(address: str) -> SocketAddress:
    """Raises `BadAddress`."""
    found = _ADDRESS.fullmatch(address)
    if found is None or int(found[2]) > LAST_PORT or not _may_be_host(found[1]):
        raise BadAddress(given=address)
    return SocketAddress(found[1].strip("[]"), int(found[2]))


def check_to_listen(address: str, announce: str | None) -> None:
    """Checks a backbone's address and announced host. Raises `BadAddress`, `BadSetting`."""
    parse(address)
    if announce is not None and not _is_host(announce):
        expected = "the name or the address of this machine alone, as in swarm.example.org"
        raise BadSetting(name="--announce", value=announce, expected=expected)


def check_to_join(address: str) -> None:
    """Raises `BadAddress` if no backbone can have this address, before anything waits for it."""
    where = parse(address)
    if not where.host or not where.port:
        raise BadAddress(given=address)


def _is_host(text: str) -> bool:
    if ":" in text:
        return _ip(text) is not None
    return re.fullmatch(r"[\w.-]+", text) is not None


def _may_be_host(name: str) -> bool:
    """True if a machine can have that name or address. Sockets raise no OSError for others."""
    try:
        name.encode("idna")
    except UnicodeError:
        return False
    return name.isprintable()


def own_host() -> str:
    """The address of the interface from which this machine would reach others. Nothing is sent."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as tried:
        tried.connect(("192.0.2.1", 9))  # TEST-NET-1, which no machine has
        return tried.getsockname()[0]
    return "127.0.0.1"


def seen_address(seen_host: str, announced: str) -> str | None:
    """The port that a peer listens on, at the host from which it dials. None if it has none."""
    host = _ip(seen_host)
    return None if host is None else str(SocketAddress(str(host), parse(announced).port))


def network_of(host: str) -> str:
    """The network that one person is likely to have: an address, or the half of version 6's."""
    if isinstance(found := _ip(host), ipaddress.IPv6Address):
        return str(ipaddress.ip_network((found, 64), strict=False))
    return host if found is None else str(found)


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    with contextlib.suppress(ValueError):
        found = ipaddress.ip_address(host.partition("%")[0])
        return getattr(found, "ipv4_mapped", None) or found
    return None


def cannot_listen(where: SocketAddress, problem: str | None) -> CannotListen:
    return CannotListen(where=where, problem=problem, option="--listen")
