"""Addresses of TCP and of TLS over it: `tcp://HOST:PORT`, `tls://HOST:PORT/FINGERPRINT`.

A fingerprint identifies the key of the peer that listens there. It is left out of an address to
listen on. A host of version 6 stands in brackets, as in a URL.
"""

import contextlib
import ipaddress
import re
import socket
from typing import NamedTuple

from dipaco.errors import BadSetting, CannotListen
from dipaco.swarm.errors import BadAddress

TCP = "tcp://"
TLS = "tls://"
LAST_PORT = 65535
ANYWHERE = ("0.0.0.0", "::")  # listens on all of a machine's addresses

_ADDRESS = re.compile(r"(tcp|tls)://(\[[^\[\]/]*\]|[^:/\[\]]*):([0-9]{1,5})(?:/([0-9a-f]{32}))?")


class SocketAddress(NamedTuple):
    """The address on which a peer listens."""

    kind: str  # `TCP` or `TLS`
    host: str  # without brackets
    port: int
    # Fingerprint of the peer's key, with TLS. Empty in an address to listen on.
    fingerprint: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.kind}{host}:{self.port}{'/' if self.fingerprint else ''}{self.fingerprint}"


def parse(address: str) -> SocketAddress:
    """Raises `BadAddress`."""
    found = _ADDRESS.fullmatch(address)
    if found is None or int(found[3]) > LAST_PORT or (found[1] == "tcp" and found[4]):
        raise BadAddress(given=address)
    if not may_be_host(found[2]):
        raise BadAddress(given=address)
    return SocketAddress(f"{found[1]}://", found[2].strip("[]"), int(found[3]), found[4] or "")


def check_to_listen(address: str, announce: str | None) -> None:
    """Checks, before anything is begun, a backbone's address and the host that it announces.

    Raises:
      BadAddress: the address is of no kind.
      BadSetting: the announced name is no host, or there is no TLS.
    """
    parse(address)
    if announce is None:
        return
    expected = ""
    if kind_of(address) != TLS:
        expected = "that it is left out, or `--listen tls://HOST:PORT`: others tell their address"
    elif not _is_host(announce):
        expected = "the name or the address of this machine alone, as in swarm.example.org"
    if expected:
        raise BadSetting(name="--announce", value=announce, expected=expected)


def _is_host(text: str) -> bool:
    if ":" in text:
        with contextlib.suppress(ValueError):
            return ipaddress.ip_address(text).version == 6
        return False
    return re.fullmatch(r"[\w.-]+", text) is not None


def check_to_join(address: str) -> None:
    """Raises `BadAddress` if no backbone can have this address, before anything waits for it."""
    where = parse(address)
    if not where.host or not where.port or (where.kind == TLS) != bool(where.fingerprint):
        raise BadAddress(given=address)


def may_be_host(name: str) -> bool:
    """True if a machine can have that name or address. Sockets raise no OSError for others."""
    try:
        name.encode("idna")
    except UnicodeError:
        return False
    return "\0" not in name


def kind_of(address: str) -> str:
    """`TCP`, `TLS`, or empty for unknown kinds."""
    return next((kind for kind in (TCP, TLS) if address.startswith(kind)), "")


def hang_up_hint(address: str) -> str:
    """A likely reason why a peer hangs up without a reply."""
    hints = {TCP: ": does it speak TLS (tls://)?", TLS: ": is this credential valid by its clock?"}
    return hints.get(kind_of(address), "")


def own_host(towards: str = "192.0.2.1") -> str:
    """The address of the interface from which this machine would reach a host. Nothing is sent.

    Args:
      towards: an address of version 4 or 6. The default belongs to no machine.
    """
    family = socket.AF_INET6 if ":" in towards else socket.AF_INET
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as tried:
        tried.connect((towards, 9))
        return tried.getsockname()[0]
    return "127.0.0.1"


def cannot_listen(where: object, problem: str | None) -> CannotListen:
    return CannotListen(where=where, problem=problem, option="--listen")
