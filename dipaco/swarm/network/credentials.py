"""Credentials: X.509 certificates that the run's own key has signed, for TLS 1.3 at both ends.

A *credential* is a PEM file for one name: a private key, its certificate (name, role, validity) and
the authority's certificate, by which the holder knows others. The authority's private key stays in
a file of the organiser's (`keys_folder`). The ledger has digests of certificates alone, so its
readers can make none. Ed25519 throughout. Clocks may differ by `SKEW_SECONDS`.
"""

import contextlib
import datetime
import functools
import hashlib
import os
import re
import secrets
import ssl
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dipaco.control.names import check_name
from dipaco.files import PRIVATE, translate_os_errors
from dipaco.swarm.errors import BadCredential, CredentialExists, MessageRefused

SKEW_SECONDS = 120.0
DAY_SECONDS = 86400.0
MAX_DAYS = 36500.0
BACKBONE, VOLUNTEER = "backbone", "volunteer"  # roles

_BEGIN = b"-----BEGIN CERTIFICATE-----"
_ASK_FOR_ANOTHER = "Ask for a new one (`dipaco swarm token`)."
_ALWAYS = (
    datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC),
    datetime.datetime(2500, 1, 1, tzinfo=datetime.UTC),
)
_SESSION = re.compile("[0-9a-f]{8}")


class Certificate(NamedTuple):
    """What the authority vouches for."""

    serial: str  # a digest of the certificate
    name: str
    role: str
    not_after: float  # seconds, as time.time()


class Credential(NamedTuple):
    """The content of a credential file."""

    key_and_certificate: bytes  # PEM
    authority: bytes  # PEM: the authority's certificate

    @property
    def der(self) -> bytes:
        """The holder's certificate, DER."""
        own = self.key_and_certificate
        return ssl.PEM_cert_to_DER_cert(own[own.index(_BEGIN) :].decode())

    @property
    def certificate(self) -> Certificate:
        return certificate_of(self.der)


class Authority:
    """Issues credentials for one run. `private_key`: 32 bytes, secret."""

    def __init__(self, private_key: bytes):
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        self._key = Ed25519PrivateKey.from_private_bytes(private_key)
        self.fingerprint = hashlib.sha256(self._key.public_key().public_bytes_raw()).hexdigest()

    @staticmethod
    def new_key() -> bytes:
        return secrets.token_bytes(32)

    def issue(self, name: str, role: str, now: float, days: float) -> Credential:
        """A credential for one name, with a new key. `now`: seconds, as time.time(). Raises
        `BadName`, `BadCredential`: `days` is not within 0 and `MAX_DAYS`.
        """
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        check_name(name)
        if not 0 < days <= MAX_DAYS:
            remedy = f"Give more than 0 and at most {MAX_DAYS:,.0f}."
            raise BadCredential(problem=f"it would be valid for {days} days", remedy=remedy)
        key = Ed25519PrivateKey.generate()
        valid = now - SKEW_SECONDS, now + days * DAY_SECONDS + SKEW_SECONDS
        dates = [datetime.datetime.fromtimestamp(int(at), datetime.UTC) for at in valid]
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        certificate = self._signed((name, role), key.public_key(), *dates)
        own = self._signed((self.fingerprint,), self._key.public_key(), *_ALWAYS)
        return Credential(private + certificate, own)

    def _signed(self, subject: tuple[str, ...], holder: Any, *valid: datetime.datetime) -> bytes:
        """A certificate for a public key, PEM. An authority's subject has no role."""
        from cryptography import x509
        from cryptography.hazmat.primitives.serialization import Encoding

        def named(name: str, *role: str) -> x509.Name:
            kinds = (x509.NameOID.USER_ID, x509.NameOID.ORGANIZATIONAL_UNIT_NAME)
            return x509.Name(
                x509.NameAttribute(kind, text)
                for kind, text in zip(kinds, (name, *role), strict=False)
            )

        builder = (
            x509.CertificateBuilder()
            .issuer_name(named(self.fingerprint))
            .subject_name(named(*subject))
            .public_key(holder)
            .serial_number(1 if len(subject) == 1 else x509.random_serial_number())
            .not_valid_before(valid[0])
            .not_valid_after(valid[1])
            .add_extension(x509.BasicConstraints(ca=len(subject) == 1, path_length=None), True)
        )
        return builder.sign(self._key, None).public_bytes(Encoding.PEM)


def authority_in(file: Path) -> Authority:
    """The authority whose private key is in a file. Makes both if there is no such file. Raises
    `BadCredential`: it holds no key; `NotWritable`.
    """
    with translate_os_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with contextlib.suppress(FileExistsError):  # it was made before
            _write_new(file, Authority.new_key().hex().encode())
        text = file.read_text()
    try:
        return Authority(bytes.fromhex(text))
    except ValueError as error:
        remedy = "It was the run's signing key: restore it from a copy."
        raise BadCredential(problem=f"{file} holds no key", remedy=remedy) from error


def keys_folder() -> Path:
    """The folder of the organiser's signing keys: `dipaco/keys` in `$XDG_DATA_HOME` or in
    `~/.local/share`. Raises `BadCredential`: the user has no home.
    """
    try:
        home = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    except RuntimeError as error:
        problem = "this user has no home folder to keep the run's signing key in"
        raise BadCredential(problem=problem, remedy="Set `XDG_DATA_HOME` to one.") from error
    return home / "dipaco" / "keys"


def save_credential(credential: Credential, file: Path) -> None:
    """Writes a new file that its owner alone can read. Raises `CredentialExists`, `DiskFull`,
    `NotWritable`.
    """
    with translate_os_errors(file):
        try:
            _write_new(file, b"".join(credential))
        except FileExistsError as error:
            raise CredentialExists(file=file, name=credential.certificate.name) from error


def _write_new(file: Path, content: bytes) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE)
    try:
        with open(descriptor, "wb") as stream:
            stream.write(content)
    except OSError:
        file.unlink(missing_ok=True)
        raise


def load_credential(file: Path) -> Credential:
    """Raises `BadCredential`."""
    try:
        content = file.read_bytes()
        at = content.rindex(_BEGIN)
        credential = Credential(content[:at], content[at:])
        _ = credential.certificate, context(credential, ssl.PROTOCOL_TLS_CLIENT)
    except ssl.SSLError as error:
        problem = f"{file} is damaged ({error.reason})"
        raise BadCredential(problem=problem, remedy=_ASK_FOR_ANOTHER) from error
    except OSError as error:
        problem = f"{file} cannot be read: {error.strerror}"
        raise BadCredential(problem=problem, remedy="Give the file that you were sent.") from error
    except (ValueError, IndexError) as error:
        problem = f"{file} holds no credential that `dipaco swarm token` has written"
        raise BadCredential(problem=problem, remedy=_ASK_FOR_ANOTHER) from error
    return credential


def check_not_expired(credential: Credential) -> None:
    """Raises `BadCredential` if it has expired by this machine's clock."""
    until = credential.certificate.not_after
    if time.time() > until + SKEW_SECONDS:
        moment = time.strftime("on %Y-%m-%d at %H:%M", time.localtime(until))
        remedy = "Ask for a new one (`dipaco swarm token`), or set this machine's clock."
        raise BadCredential(problem=f"it has expired, {moment}", remedy=remedy)


def context(credential: Credential, kind: Any) -> ssl.SSLContext:
    """Shows the credential's certificate, and accepts those of the same authority."""
    made = ssl.SSLContext(kind)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.check_hostname = False  # `Wire.ask` looks at name and role
    made.verify_mode = ssl.CERT_REQUIRED
    made.load_verify_locations(cadata=credential.authority.decode())
    with tempfile.NamedTemporaryFile() as file:  # `ssl` takes files only. Its owner alone reads it.
        file.write(credential.key_and_certificate)
        file.flush()
        made.load_cert_chain(file.name)
    return made


@functools.lru_cache(maxsize=4096)
def certificate_of(content: bytes) -> Certificate:
    """A certificate's facts. Nothing is checked here."""
    from cryptography import x509

    found = x509.load_der_x509_certificate(content)
    name, role = [str(one.value) for one in found.subject]
    return Certificate(
        serial=hashlib.sha256(content).hexdigest()[:32],
        name=name,
        role=role,
        not_after=found.not_valid_after_utc.timestamp() - SKEW_SECONDS,
    )


class Verifier:
    """The lists of the run, by which a certificate of its authority may still be refused."""

    def __init__(self) -> None:
        self.allowed: Collection[str] | None = None  # serials; None = all
        self.refresh_lists: Callable[[], None] = lambda: None  # they may have grown
        self.revoked: Collection[str] = frozenset()  # serials
        self.locked: Mapping[str, str] = {}  # serial -> a sentence that says why

    def check(self, certificate: Certificate, sender: str) -> None:
        """Checks who sends on this certificate's connection. Raises `MessageRefused`."""

        def refused(reason: str) -> MessageRefused:
            return MessageRefused(sender=printable(sender), reason=reason)

        name, _, session = sender.partition("/")
        if name != certificate.name or not _SESSION.fullmatch(session):
            raise refused(f"it uses the credential of {certificate.name}")
        if not self._is_listed(certificate.serial):
            self.refresh_lists()
            if not self._is_listed(certificate.serial):
                raise refused("its credential is not on the list")
        if certificate.serial in self.locked:
            raise refused(self.locked[certificate.serial])
        if certificate.serial in self.revoked:
            raise refused("its credential was revoked")

    def _is_listed(self, serial: str) -> bool:
        return self.allowed is None or serial in self.allowed


def printable(text: str, most: int = 200) -> str:
    """A stranger's text for a terminal: one line without control characters."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text[:most])
