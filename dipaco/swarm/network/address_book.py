"""Records of a run's peers: by them a machine finds the run when no address that it knows answers.

A *record* is what a peer says of itself: its certificate, a number that grows, and its address,
signed with the key of its credential. So nobody makes one for another, and of each peer the newest
counts. Whoever joins exchanges records with the leader and keeps them on disk. A backbone that has
moved tells volunteers, and who finds no backbone asks them.
"""

import contextlib
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import msgspec

from dipaco.errors import DipacoError
from dipaco.files import write_atomically
from dipaco.swarm.errors import BadAddress
from dipaco.swarm.network.addresses import check_to_join
from dipaco.swarm.network.credentials import Credential, certificate_of
from dipaco.swarm.network.messages import Record

MAX_RECORDS = 256  # The oldest are dropped.


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
        """The newest first."""
        return tuple(sorted(self._records.values(), key=lambda one: -one.number))

    def put_own(self, address: str) -> None:
        self.merge((record_of(self._credential, address),))

    def merge(self, records: Iterable[Record]) -> None:
        """Takes those that are newer and hold. Keeps them on disk."""
        for one in list(records)[:MAX_RECORDS]:
            serial = certificate_of(one.certificate).serial if self._is_of_run(one) else ""
            known = self._records.get(serial)
            if serial and (known is None or known.number < one.number):
                self._records[serial] = one
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

    def _is_of_run(self, record: Record) -> bool:
        """True if a credential of the run, which has not expired, has signed it."""
        from cryptography import x509
        from cryptography.exceptions import InvalidSignature

        try:
            found = x509.load_der_x509_certificate(record.certificate)
            authority = x509.load_pem_x509_certificate(self._credential.authority)
            found.verify_directly_issued_by(authority)
            signed = _signed(record.number, record.address)
            cast(Any, found.public_key()).verify(record.signature, signed)
            check_to_join(record.address)
        except (ValueError, TypeError, InvalidSignature, BadAddress):
            return False
        return certificate_of(record.certificate).not_after > time.time()


def record_of(credential: Credential, address: str) -> Record:
    """A new record of a credential's holder."""
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    number, key = time.time_ns(), load_pem_private_key(credential.key_and_certificate, None)
    signature = cast(Any, key).sign(_signed(number, address))
    return Record(credential.der, number, address, signature)


def _signed(number: int, address: str) -> bytes:
    return f"dipaco address {number} {address}".encode()
