"""Which credentials are valid, and where the run's key is."""

import time

import pytest

from dipaco.control.errors import BadName
from dipaco.swarm.errors import BadCredential, MessageRefused
from dipaco.swarm.network.addresses import parse, seen_address
from dipaco.swarm.network.credentials import (
    DAY_SECONDS,
    MAX_DAYS,
    Verifier,
    authority_in,
    check_not_expired,
    load_credential,
    printable,
    save_credential,
)
from tests.support.swarm_rig import AUTHORITY, issue


@pytest.mark.parametrize("name", ["ana", "é" * 50, "a" * 100])
def test_a_credential_comes_back_from_its_file_which_others_cannot_read(name, tmp_path):
    credential = issue(name)
    save_credential(credential, tmp_path / "ana.pass")
    assert load_credential(tmp_path / "ana.pass") == credential
    assert (tmp_path / "ana.pass").stat().st_mode & 0o077 == 0
    assert credential.certificate.name == name
    assert abs(credential.certificate.not_after - time.time() - DAY_SECONDS) < 3
    check_not_expired(credential)


def test_a_file_that_is_no_credential_is_refused_with_a_sentence(tmp_path):
    file = tmp_path / "x"
    mixed = issue("ana").key_and_certificate.split(b"-----BEGIN CERT")[0]
    mixed += b"-----BEGIN CERT" + issue("bo").key_and_certificate.split(b"-----BEGIN CERT")[1]
    for content, says in (
        (b"cos\nsystem\n(S'rm'\ntR.", "holds no credential"),
        (issue("ana").authority, "holds no credential"),
        (issue("ana").key_and_certificate, "holds no credential"),
        (b"\x00" + b"".join(issue("ana"))[::-1], "holds no credential"),
        (mixed + AUTHORITY.issue("ana", "volunteer", 0.0, 1.0).authority, "is damaged"),
    ):
        file.write_bytes(content)
        with pytest.raises(BadCredential, match=says):
            load_credential(file)
    with pytest.raises(BadCredential, match="cannot be read"):
        load_credential(tmp_path / "missing")


def test_a_name_and_the_days_of_a_credential_are_possible_ones():
    with pytest.raises(BadName, match="not a valid name"):
        issue("../etc")
    for days in (0.0, -1.0, MAX_DAYS + 1, float("nan"), float("inf")):
        with pytest.raises(BadCredential, match="Give more than 0 and at most 36,500"):
            issue("ana", days=days)
    assert issue("ana", days=MAX_DAYS).certificate.not_after > time.time()


def test_the_runs_key_is_made_once_in_a_file_that_its_owner_alone_reads(tmp_path):
    file = tmp_path / "keys" / "run.key"
    first = authority_in(file)
    assert authority_in(file).fingerprint == first.fingerprint
    assert (file.stat().st_mode | file.parent.stat().st_mode) & 0o077 == 0
    file.write_text("no key")
    with pytest.raises(BadCredential, match="holds no key"):
        authority_in(file)


def test_a_revoked_credential_and_one_not_on_the_list_are_refused():
    verifier, ana = Verifier(), issue("ana").certificate

    def refused(why, sender="ana/0123abcd"):
        with pytest.raises(MessageRefused, match=why) as error:
            verifier.check(ana, sender)
        assert str(error.value).isprintable()

    verifier.check(ana, "ana/0123abcd")
    for other in ("eve/0123abcd", "ana", "ana/1234", "ana/\x1b[2J\x1b[31mback"):
        refused("the credential of ana", other)
    verifier.allowed = {ana.serial}
    verifier.check(ana, "ana/0123abcd")
    verifier.revoked = {ana.serial}
    refused("revoked")
    verifier.locked = {ana.serial: "it is locked"}
    refused("it is locked")
    verifier.revoked, verifier.locked, verifier.allowed = set(), {}, set()
    refused("not on the list")
    # The list is read again before a refusal: the credential may have been issued a moment ago.
    verifier.refresh_lists = lambda: setattr(verifier, "allowed", {ana.serial})
    verifier.check(ana, "ana/0123abcd")


def test_a_strangers_text_is_printable():
    assert printable("\x1b[2J\r\nok").isprintable()
    assert printable("x" * 1000) == "x" * 200


@pytest.mark.parametrize(
    ("host", "seen"),
    [
        ("198.51.100.7", "198.51.100.7:5"),
        ("::ffff:198.51.100.7", "198.51.100.7:5"),
        ("2001:db8::1", "[2001:db8::1]:5"),
        ("", None),
        ("no host", None),
    ],
)
def test_the_port_is_the_peers_and_the_host_what_others_see(host, seen):
    assert seen_address(host, "192.168.1.2:5") == seen
    if seen is not None:
        assert str(parse(seen)) == seen
