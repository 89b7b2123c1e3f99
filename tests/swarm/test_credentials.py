"""Which messages are authentic, and which are refused."""

import msgspec
import pytest

from dipaco.control.errors import BadName
from dipaco.swarm.errors import BadCredential, MessageRefused
from dipaco.swarm.network import credentials
from dipaco.swarm.network.credentials import (
    DAY_SECONDS,
    Authority,
    Signer,
    Verifier,
    load_credential,
    save_credential,
)

NOW = 1_000_000.0


class Clock:
    def __init__(self, now=NOW):
        self.now = now

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def authority():
    return Authority(bytes(range(32)), "run")


@pytest.fixture
def verifier(authority, clock):
    return Verifier(authority.public_key, "run", "back/1", clock)


def signer(authority, clock, name="ana", days=7.0):
    return Signer(authority.issue(name, "volunteer", NOW, days), clock)


def test_the_sender_of_a_good_message_is_known(authority, verifier, clock):
    ana = signer(authority, clock)
    assert verifier.check(ana.seal(b"hello", "back/1"), b"hello").name == "ana"


def refused(verifier, seal, content, why):
    with pytest.raises(MessageRefused, match=why):
        verifier.check(seal, content)


def test_an_altered_message_is_refused(authority, verifier, clock):
    refused(verifier, signer(authority, clock).seal(b"1 sample", ""), b"9 samples", "signature")


def test_a_message_sent_again_is_refused(authority, verifier, clock):
    seal = signer(authority, clock).seal(b"hello", "")
    verifier.check(seal, b"hello")
    refused(verifier, seal, b"hello", "sent before")
    clock.now += 3600
    refused(verifier, seal, b"hello", "60 minutes off")


def test_a_nonce_has_its_one_length_so_that_none_fills_the_memory(authority, verifier, clock):
    ana = signer(authority, clock)
    for num_bytes in (0, 11, 13, 300_000):
        unsigned = msgspec.structs.replace(ana.seal(b"x", ""), nonce=bytes(num_bytes))
        signature = ana._key.sign(credentials._to_sign(unsigned, b"x"))
        seal = msgspec.structs.replace(unsigned, signature=signature)
        refused(verifier, seal, b"x", f"its nonce has {num_bytes} bytes, not 12")
    assert not verifier._seen


def test_a_message_for_another_recipient_is_refused(authority, verifier, clock):
    refused(verifier, signer(authority, clock).seal(b"x", "other/2"), b"x", "another recipient")


def test_clocks_a_minute_apart_are_fine_and_ten_are_not(authority, verifier):
    for skew in (-60, 60):
        ana = signer(authority, Clock(NOW + skew))
        verifier.check(ana.seal(b"x", ""), b"x")
    refused(
        verifier, signer(authority, Clock(NOW + 600)).seal(b"x", ""), b"x", "look at both clock"
    )


def test_an_expired_credential_is_refused(authority, verifier, clock):
    ana = signer(authority, clock, days=1)
    clock.now += DAY_SECONDS + 60
    verifier.check(ana.seal(b"x", ""), b"x")  # a minute apart
    clock.now += 3600
    refused(verifier, ana.seal(b"x", ""), b"x", "expired")


def test_a_forged_credential_is_refused(verifier, clock):
    forger = Authority(bytes(32), "run")
    refused(verifier, signer(forger, clock).seal(b"x", ""), b"x", "not issued by this run")


def test_a_credential_whose_validity_was_altered_is_refused(authority, verifier, clock):
    credential = authority.issue("ana", "volunteer", NOW, 1.0)
    longer = msgspec.structs.replace(credential.certificate, not_after=NOW + 1e9)
    signed = msgspec.structs.replace(credential.signed, certificate=msgspec.msgpack.encode(longer))
    seal = Signer(msgspec.structs.replace(credential, signed=signed), clock).seal(b"x", "")
    refused(verifier, seal, b"x", "not issued by this run")


def test_a_stolen_certificate_without_its_key_is_useless(authority, verifier, clock):
    ana, eve = (authority.issue(name, "volunteer", NOW, 7) for name in ("ana", "eve"))
    thief = msgspec.structs.replace(ana, private_key=eve.private_key)
    refused(verifier, Signer(thief, clock).seal(b"x", ""), b"x", "signature")


def test_a_credential_for_another_run_is_refused(verifier, clock):
    other = Authority(bytes(range(32)), "another")
    refused(verifier, signer(other, clock).seal(b"x", ""), b"x", "another run")


def test_a_revoked_credential_and_one_not_on_the_list_are_refused(authority, verifier, clock):
    credential = authority.issue("ana", "volunteer", NOW, 7)
    ana = Signer(credential, clock)
    verifier.allowed = {credential.certificate.serial}
    verifier.check(ana.seal(b"x", ""), b"x")
    verifier.revoked = {credential.certificate.serial}
    refused(verifier, ana.seal(b"x", ""), b"x", "revoked")
    verifier.revoked, verifier.allowed = set(), set()
    refused(verifier, ana.seal(b"x", ""), b"x", "not on the list")
    # The list is read again before a refusal: the credential may have been issued a moment ago.
    verifier.refresh_lists = lambda: setattr(verifier, "allowed", {credential.certificate.serial})
    verifier.check(ana.seal(b"x", ""), b"x")


def test_a_peer_cannot_sign_in_anothers_name(authority, verifier, clock):
    eve = signer(authority, clock, "eve")
    eve.name = "ana/0123abcd"
    refused(verifier, eve.seal(b"x", ""), b"x", "credential of eve")


def test_a_credential_comes_back_from_its_file_which_others_cannot_read(authority, tmp_path):
    credential = authority.issue("ana", "volunteer", NOW, 7)
    save_credential(credential, tmp_path / "ana.pass")
    assert load_credential(tmp_path / "ana.pass") == credential
    assert (tmp_path / "ana.pass").stat().st_mode & 0o077 == 0


def test_a_file_that_is_no_credential_is_refused_with_a_sentence(authority, tmp_path):
    (tmp_path / "x").write_bytes(b"cos\nsystem\n(S'rm'\ntR.")
    with pytest.raises(BadCredential, match="holds no credential"):
        load_credential(tmp_path / "x")
    with pytest.raises(BadCredential, match="cannot be read"):
        load_credential(tmp_path / "missing")
    with pytest.raises(BadName, match="not a valid name"):
        authority.issue("../etc", "volunteer", NOW, 7)
