"""Certificates for TLS (X.509) of credentials.

The authority of a run signs one for the key of each credential, and that key alone proves it. Trust
rests on the authority's public key, which every credential holds: a certificate for it is made
whenever it is needed. Names carry no meaning. A peer's identity, and whether its credential was
revoked, are in the messages, which are signed as well.
"""

import datetime
import hashlib
from typing import Any

FINGERPRINT_DIGITS = 32  # hexadecimal: 128 bits
_ALWAYS = (
    datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC),
    datetime.datetime(2500, 1, 1, tzinfo=datetime.UTC),
)


def fingerprint(public_key: bytes) -> str:
    """The fingerprint of an Ed25519 key, as in an address."""
    return hashlib.sha256(public_key).hexdigest()[:FINGERPRINT_DIGITS]


def issue(authority: Any, serial: int, holder: bytes, not_before: float, not_after: float) -> bytes:
    """A certificate for a key.

    Args:
      authority: the private key that signs.
      serial: at least 1.
      holder: public key.
      not_before, not_after: seconds, as time.time().

    Returns:
      DER.
    """
    from cryptography.hazmat.primitives.serialization import Encoding

    valid = (
        datetime.datetime.fromtimestamp(int(not_before), datetime.UTC),
        datetime.datetime.fromtimestamp(int(not_after) + 1, datetime.UTC),
    )
    issuer = authority.public_key().public_bytes_raw()
    built = _builder(issuer, f"{serial:x}", holder, serial, valid, is_authority=False)
    return built.sign(authority, None).public_bytes(Encoding.DER)


def trusted_authority(public_key: bytes) -> bytes:
    """A certificate for an authority's key, for a store of trusted ones. No authority signs it:
    nothing checks a certificate that is trusted by itself.

    Returns:
      DER.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding

    name = fingerprint(public_key)
    built = _builder(public_key, name, public_key, 1, _ALWAYS, is_authority=True)
    return built.sign(Ed25519PrivateKey.from_private_bytes(bytes(32)), None).public_bytes(
        Encoding.DER
    )


def key_and_chain(private_key: bytes, certificate: bytes, password: bytes) -> bytes:
    """The file that `ssl.SSLContext.load_cert_chain` reads: PEM, the key encrypted."""
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.from_private_bytes(private_key).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(password),
    )
    chain = x509.load_der_x509_certificate(certificate)
    return key + chain.public_bytes(serialization.Encoding.PEM)


def public_key_of(certificate: bytes) -> bytes:
    """The key in a certificate that was checked.

    Args:
      certificate: DER.
    """
    from cryptography import x509

    key: Any = x509.load_der_x509_certificate(certificate).public_key()
    return key.public_bytes_raw()


def _builder(
    issuer: bytes,
    subject: str,
    holder: bytes,
    serial: int,
    valid: tuple[datetime.datetime, datetime.datetime],
    *,
    is_authority: bool,
) -> Any:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])

    return (
        x509.CertificateBuilder()
        .issuer_name(name(fingerprint(issuer)))
        .subject_name(name(subject))
        .public_key(Ed25519PublicKey.from_public_bytes(holder))
        .serial_number(serial)
        .not_valid_before(valid[0])
        .not_valid_after(valid[1])
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
    )
