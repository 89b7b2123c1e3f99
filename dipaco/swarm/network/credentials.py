"""Credentials: which peers may take part, until when, and the signature on every message.

A *credential* is a small file for one name: a certificate (name, role, group, validity, the
holder's public key) signed by the run's authority, and the private key to it. Every message is
signed with that key and carries the certificate, the time, a nonce and the name of its recipient,
so it can neither be forged, altered, sent again nor sent to another peer. Ed25519 throughout.
Certificates are checked against the authority, an allow-list and a list of revoked ones. Clocks may
differ by `SKEW_SECONDS`. Nothing is unpickled.
"""

import collections
import hashlib
import os
import re
import secrets
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from dipaco.control.names import check_name
from dipaco.files import PRIVATE, translate_os_errors
from dipaco.swarm.errors import BadCredential, CredentialExists, MessageRefused
from dipaco.swarm.network import x509

SKEW_SECONDS = 120.0
DAY_SECONDS = 86400.0
MAX_DAYS = 36500.0
NONCE_BYTES = 12
OTHER_RECIPIENT = "the message was for another recipient"

PeerRole = Literal["volunteer", "backbone"]

_SESSION = re.compile("[0-9a-f]{8}")


class Certificate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The facts that the authority vouches for."""

    serial: str
    name: str
    role: PeerRole
    group: str  # the run's identity
    holder: bytes  # public key
    not_before: float  # seconds, as time.time()
    not_after: float


class SignedCertificate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A certificate with the authority's signature."""

    certificate: bytes  # the signed bytes
    signature: bytes


class Credential(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a credential file."""

    version: int
    signed: SignedCertificate
    private_key: bytes
    authority: bytes  # public key: the holder checks replies with it
    tls_certificate: bytes = b""  # X.509 certificate of the same key, for TLS

    @property
    def certificate(self) -> Certificate:
        return msgspec.msgpack.decode(self.signed.certificate, type=Certificate)


class Seal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The signature of a message, with everything else that checks need."""

    signed: SignedCertificate
    sender: str  # name/session
    recipient: str  # a session; empty = any, in a message that asks for its name
    at: float  # the sender's clock
    nonce: bytes
    signature: bytes = b""


class Authority:
    """Issues credentials for one run.

    Args:
      private_key: 32 bytes, secret.
      group: the run's identity.
    """

    def __init__(self, private_key: bytes, group: str):
        self._key, self.group = _private(private_key), group

    @staticmethod
    def new_key() -> bytes:
        return secrets.token_bytes(32)

    @property
    def public_key(self) -> bytes:
        return self._key.public_key().public_bytes_raw()

    def issue(
        self, name: str, role: PeerRole, now: float, days: float, *, holder: str = ""
    ) -> Credential:
        """A credential for one name, with its own key.

        Args:
          name, role: the holder's name and role.
          now: seconds, as time.time().
          days: days of validity.
          holder: identifies a holder that gets the same key with every credential, and so keeps its
            address; empty = a new key.

        Raises:
          BadName: the name is not valid.
          BadCredential: `days` is not within 0 and `MAX_DAYS`.
        """
        check_name(name)
        if not 0 < days <= MAX_DAYS:
            remedy = f"Give more than 0 and at most {MAX_DAYS:,.0f}."
            raise BadCredential(problem=f"it would be valid for {days} days", remedy=remedy)
        private = secrets.token_bytes(32) if not holder else self._key_of(holder)
        public = _private(private).public_key().public_bytes_raw()
        serial = secrets.token_hex(8)
        certificate = msgspec.msgpack.encode(
            Certificate(
                serial=serial,
                name=name,
                role=role,
                group=self.group,
                holder=public,
                not_before=now,
                not_after=now + days * DAY_SECONDS,
            )
        )
        signed = SignedCertificate(certificate, self._key.sign(certificate))
        x509_serial = int(serial, 16) or 1
        valid = now - SKEW_SECONDS, now + days * DAY_SECONDS + SKEW_SECONDS
        of_tls = x509.issue(self._key, x509_serial, public, *valid)
        return Credential(1, signed, private, self.public_key, of_tls)

    def _key_of(self, holder: str) -> bytes:
        """A private key that only the authority can derive."""
        own = self._key.private_bytes_raw()
        return hashlib.blake2b(holder.encode(), digest_size=32, key=own, person=b"holder").digest()


def save_credential(credential: Credential, file: Path) -> None:
    """Writes a new file that its owner alone can read.

    Raises:
      CredentialExists: there is a file of that name. It is left as it is.
      DiskFull, NotWritable.
    """
    with translate_os_errors(file):
        try:
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE)
        except FileExistsError as error:
            raise CredentialExists(file=file, name=credential.certificate.name) from error
        try:
            with open(descriptor, "wb") as stream:
                stream.write(msgspec.msgpack.encode(credential))
        except OSError:
            file.unlink(missing_ok=True)
            raise


def load_credential(file: Path) -> Credential:
    """Raises `BadCredential`."""
    remedy = "Ask for a new one (`dipaco swarm token`)."
    try:
        credential = msgspec.msgpack.decode(file.read_bytes(), type=Credential)
        _ = credential.certificate
    except OSError as error:
        problem = f"{file} cannot be read: {error.strerror}"
        raise BadCredential(problem=problem, remedy="Give the file that you were sent.") from error
    except msgspec.MsgspecError as error:
        problem = f"{file} holds no credential that `dipaco swarm token` has written"
        raise BadCredential(problem=problem, remedy=remedy) from error
    return credential


def check_not_expired(credential: Credential) -> None:
    """Raises `BadCredential` if it has expired by this machine's clock."""
    until = credential.certificate.not_after
    if time.time() > until + SKEW_SECONDS:
        remedy = "Ask for a new one (`dipaco swarm token`), or set this machine's clock."
        raise BadCredential(problem=f"it has expired, {_moment(until)}", remedy=remedy)


def _moment(seconds: float) -> str:
    return time.strftime("on %Y-%m-%d at %H:%M", time.localtime(seconds))


class Signer:
    """Signs the messages of one session of a credential's holder."""

    def __init__(self, credential: Credential, clock: Callable[[], float]):
        self._credential, self._clock = credential, clock
        self._key = _private(credential.private_key)
        self.name = f"{credential.certificate.name}/{secrets.token_hex(4)}"

    def seal(self, content: bytes, recipient: str) -> Seal:
        seal = Seal(
            self._credential.signed,
            self.name,
            recipient,
            self._clock(),
            secrets.token_bytes(NONCE_BYTES),
        )
        signature = self._key.sign(_to_sign(seal, content))
        return msgspec.structs.replace(seal, signature=signature)


class Verifier:
    """Checks the messages of other peers.

    Args:
      authority: the authority's public key.
      group: the run's identity.
      name: this session's name. Messages for another recipient are refused.
      clock: wall-clock seconds.
    """

    def __init__(self, authority: bytes, group: str, name: str, clock: Callable[[], float]):
        self._authority, self._group = _public(authority), group
        self._name, self._clock = name, clock
        self._seen: collections.OrderedDict[bytes, float] = collections.OrderedDict()
        self._certificates: dict[bytes, Certificate] = {}
        self.allowed: Collection[str] | None = None  # serials; None = all
        self.refresh_lists: Callable[[], None] = lambda: None  # they may have grown
        self.revoked: Collection[str] = frozenset()  # serials
        self.locked: Mapping[str, str] = {}  # serial -> a sentence that says why

    def check(self, seal: Seal, content: bytes) -> Certificate:
        """The certificate of an authentic message's sender.

        Raises:
          MessageRefused: the reason is in it.
        """
        now, sender = self._clock(), printable(seal.sender)
        certificate = self.check_signature(seal, content)
        if now > certificate.not_after + SKEW_SECONDS:
            raise _refused(sender, f"its credential has expired, {_moment(certificate.not_after)}")
        if now < certificate.not_before - SKEW_SECONDS:
            raise _refused(sender, "its credential is not valid yet: look at both clocks")
        if not self._is_listed(certificate.serial):
            self.refresh_lists()
            if not self._is_listed(certificate.serial):
                raise _refused(sender, "its credential is not on the list")
        if certificate.serial in self.locked:
            raise _refused(sender, self.locked[certificate.serial])
        if certificate.serial in self.revoked:
            raise _refused(sender, "its credential was revoked")
        if seal.recipient not in ("", self._name):
            raise _refused(sender, OTHER_RECIPIENT)
        if abs(now - seal.at) > SKEW_SECONDS:
            minutes = abs(now - seal.at) / 60
            raise _refused(sender, f"the message is {minutes:.0f} minutes off: look at both clocks")
        if len(seal.nonce) != NONCE_BYTES:
            raise _refused(sender, f"its nonce has {len(seal.nonce)} bytes, not {NONCE_BYTES}")
        self._remember(seal.nonce, now, sender)
        return certificate

    def check_signature(self, seal: Seal, content: bytes) -> Certificate:
        """The certificate of a message's signer, for any recipient and any time: a third peer may
        have passed the message on, as evidence.

        Raises:
          MessageRefused: the reason is in it.
        """
        sender = printable(seal.sender)
        certificate = self._certificate(seal.signed, sender)
        if certificate.group != self._group:
            raise _refused(sender, "its credential is for another run")
        name, _, session = seal.sender.partition("/")
        if name != certificate.name or not _SESSION.fullmatch(session):
            raise _refused(sender, f"it uses the credential of {certificate.name}")
        if not _is_signed(_public(certificate.holder), seal.signature, _to_sign(seal, content)):
            raise _refused(sender, "its signature does not fit the message")
        return certificate

    def _is_listed(self, serial: str) -> bool:
        return self.allowed is None or serial in self.allowed

    def _certificate(self, signed: SignedCertificate, sender: str) -> Certificate:
        """The checked certificate. Each is checked once, and then known by its bytes."""
        key = signed.certificate + signed.signature
        if key not in self._certificates:
            if not _is_signed(self._authority, signed.signature, signed.certificate):
                raise _refused(sender, "its credential was not issued by this run")
            if len(self._certificates) > 10_000:
                self._certificates.clear()
            self._certificates[key] = msgspec.msgpack.decode(signed.certificate, type=Certificate)
        return self._certificates[key]

    def _remember(self, nonce: bytes, now: float, sender: str) -> None:
        while self._seen:
            oldest = next(iter(self._seen))
            if now - self._seen[oldest] <= 2 * SKEW_SECONDS:
                break
            del self._seen[oldest]
        if nonce in self._seen:
            raise _refused(sender, "the message was sent before")
        self._seen[nonce] = now


def printable(text: str, most: int = 200) -> str:
    """A stranger's text for a terminal: one line without control characters."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text[:most])


def _to_sign(seal: Seal, content: bytes) -> bytes:
    unsigned: list[Any] = [seal.sender, seal.recipient, seal.at, seal.nonce]
    return msgspec.msgpack.encode(unsigned) + hashlib.blake2b(content, digest_size=32).digest()


def _refused(sender: str, reason: str) -> MessageRefused:
    return MessageRefused(sender=sender, reason=reason)


def _is_signed(key: Any, signature: bytes, content: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        key.verify(signature, content)
    except InvalidSignature:
        return False
    return True


def _private(key: bytes) -> Any:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(key)


def _public(key: bytes) -> Any:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    return Ed25519PublicKey.from_public_bytes(key)
