"""Addresses: `HOST:PORT`. A host of version 6 stands in brackets, as in a URL. Records of peers, by
which a machine finds the run when no address that it knows answers.

A *record* is a peer's certificate, a number that grows, and its address, signed with the key of its
credential: nobody makes one for another, and of each peer the newest counts. A peer that
joins exchanges records with the leader and keeps them. A backbone that has moved tells volunteers,
and a volunteer that finds no backbone asks them.
"""

import contextlib
import ipaddress
import re
import socket
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec

from dipaco.errors import BadSetting, DipacoError
from dipaco.files import write_atomically
from dipaco.swarm.errors import BadAddress
from dipaco.swarm.network.credentials import BACKBONE, Credential, certificate_of
from dipaco.swarm.network.messages import Record

LAST_PORT = 65535
MAX_HOST = 253  # characters in a name of the Internet's
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
    return name.isprintable() and len(name) <= MAX_HOST


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


# Volunteers' oldest are dropped. With the longest addresses, these fit in a request's header.
MAX_RECORDS = 128


class AddressBook:
    """The records that one peer knows. `file`: where they are kept; None = in memory alone."""

    def __init__(self, credential: Credential, file: Path | None = None):
        self._credential, self._file = credential, file
        self._records: dict[str, Record] = {}  # keyed by the certificate's digest
        self._saved: tuple[Record, ...] = ()
        if file is not None:
            with contextlib.suppress(OSError, msgspec.MsgspecError):
                self.merge(msgspec.msgpack.decode(file.read_bytes(), type=tuple[Record, ...]))

    @property
    def records(self) -> tuple[Record, ...]:
        """Backbones' first, and of each role the newest."""

        def place(one: Record) -> tuple[bool, int]:
            return certificate_of(one.certificate).role != BACKBONE, -one.number

        return tuple(sorted(self._records.values(), key=place))

    def put_own(self, address: str) -> None:
        self.merge((record_of(self._credential, address),))

    def merge(self, records: Iterable[Record]) -> None:
        """Takes those that are newer, up to one that does not hold. Honest peers send none, and
        signatures cost time. Keeps them on disk.
        """
        with contextlib.suppress(Exception):  # whatever a forged certificate makes its reader raise
            for one in list(records)[:MAX_RECORDS]:
                self._take(one)
        kept = self.records[:MAX_RECORDS]
        self._records = {certificate_of(one.certificate).serial: one for one in kept}
        if self._file is not None and kept != self._saved:
            with contextlib.suppress(OSError, DipacoError):
                self._file.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(self._file, msgspec.msgpack.encode(kept))
                self._saved = kept

    def addresses(self, role: str) -> tuple[str, ...]:
        """The addresses of peers of a role, the newest first."""
        return tuple(
            one.address for one in self.records if certificate_of(one.certificate).role == role
        )

    def _take(self, record: Record) -> None:
        """Raises an error of any kind if it does not hold."""
        certificate = certificate_of(record.certificate)
        known = self._records.get(certificate.serial)
        is_newer = known is None or known.number < record.number
        if is_newer and certificate.not_after > time.time():
            self._check(record)
            self._records[certificate.serial] = record

    def _check(self, record: Record) -> None:
        """Raises an error of any kind if no credential of the run has signed it."""
        from cryptography import x509

        found = x509.load_der_x509_certificate(record.certificate)
        authority = x509.load_pem_x509_certificate(self._credential.authority)
        found.verify_directly_issued_by(authority)
        signed = _signed(record.number, record.address)
        cast(Any, found.public_key()).verify(record.signature, signed)
        check_to_join(record.address)


def record_of(credential: Credential, address: str) -> Record:
    """A new record of a credential's holder."""
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    number, key = time.time_ns(), load_pem_private_key(credential.key_and_certificate, None)
    signature = cast(Any, key).sign(_signed(number, address))
    return Record(credential.der, number, address, signature)


def _signed(number: int, address: str) -> bytes:
    return f"dipaco address {number} {address}".encode()
