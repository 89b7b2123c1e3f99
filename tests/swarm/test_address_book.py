"""A volunteer finds the run when every address that it was given is gone."""

import time

import msgspec
import pytest

from dipaco.config import MODULAR
from dipaco.swarm.network.addresses import MAX_RECORDS, AddressBook, record_of
from dipaco.swarm.network.credentials import Authority
from dipaco.swarm.network.messages import AddressRecords
from dipaco.swarm.network.wire import REQUEST_BYTES
from dipaco.swarm.roles import session
from tests.support.backbone_rig import Lent, backbone_of, issued, phase_of
from tests.support.swarm_rig import issue
from tests.support.waiting import until

ANA, BACK = issue("ana"), issue("back", "backbone")
HERE = "203.0.113.7:4710"


@pytest.fixture
def file(tmp_path):
    return tmp_path / "swarm" / "run.addresses"


def test_records_are_kept_on_disk_and_the_newest_of_each_peer_counts(file):
    book = AddressBook(ANA, file)
    old, new = record_of(BACK, "one.example:1"), record_of(BACK, "two.example:1")
    for records in ((old,), (new,), (old,)):
        book.merge(records)
    book.put_own("198.51.100.1:9")
    for found in (book, AddressBook(ANA, file)):
        assert found.addresses("backbone") == ("two.example:1",)
        assert found.addresses("volunteer") == ("198.51.100.1:9",)


def test_nobody_makes_a_record_for_another_nor_with_another_runs_credential_nor_an_old_one():
    book, good = AddressBook(ANA), record_of(BACK, HERE)
    replace = msgspec.structs.replace
    strangers = issue("back", "backbone", Authority(bytes(32)))
    for bad in (
        replace(good, address="203.0.113.8:4710"),
        replace(good, number=good.number + 1),
        replace(good, certificate=ANA.der),
        replace(good, certificate=b"none"),
        replace(
            good,
            certificate=good.certificate.replace(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x09"),
        ),
        record_of(strangers, HERE),
        record_of(issue("back", "backbone", now=time.time() - 2 * 86400), HERE),
        record_of(BACK, "no address"),
        record_of(BACK, ".".join(["a" * 60] * 20) + ":1"),
    ):
        book.merge((bad,))
        assert book.records == ()
    book.merge((good,))
    assert book.records == (good,)


def test_a_file_that_cannot_be_read_is_replaced_and_a_full_book_drops_the_oldest(file, monkeypatch):
    file.parent.mkdir()
    file.write_bytes(b"none")
    monkeypatch.setattr("dipaco.swarm.network.addresses.MAX_RECORDS", 2)
    book = AddressBook(ANA, file)
    for number in range(3):
        book.merge((record_of(issue(f"v{number}"), f"203.0.113.7:{number + 1}"),))
    assert book.addresses("volunteer") == ("203.0.113.7:3", "203.0.113.7:2")
    assert AddressBook(ANA, file).records == book.records


def test_a_full_book_keeps_its_backbone_and_fits_in_a_request_with_the_longest_names():
    """Otherwise one volunteer, or many, would end what all tell each other."""
    book, long = AddressBook(ANA), ".".join(["a" * 62] * 4)
    book.merge((record_of(BACK, HERE),))
    for number in range(MAX_RECORDS + 2):
        book.merge((record_of(issue(f"v{number}".ljust(64, "x")), f"{long}:{number + 1}"),))
    assert len(book.records) == MAX_RECORDS
    assert book.addresses("backbone") == (HERE,)
    assert len(msgspec.msgpack.encode(AddressRecords(records=book.records))) < REQUEST_BYTES


def test_of_forged_records_one_is_looked_at_and_known_ones_are_not_looked_at_again(monkeypatch):
    """Two signatures each: a request full of them would hold up a leader for half a second."""
    book, checked = AddressBook(ANA), []
    check = book._check
    monkeypatch.setattr(book, "_check", lambda one: (checked.append(one), check(one)))
    good = record_of(BACK, HERE)
    forged = msgspec.structs.replace(good, number=good.number + 1)
    book.merge([good] * 9)
    assert checked == [good]
    book.merge([forged] * 9)
    assert checked == [good, forged]
    assert book.records == (good,)


def test_a_group_goes_on_when_all_backbones_have_moved(run, quick_backbones, monkeypatch, tmp_path):
    """The new one tells the volunteers that it can reach; one that only dials out asks those, and
    so does one that begins with the old address, by what it has on disk.
    """
    monkeypatch.setattr(session, "cache_folder", lambda: tmp_path)
    roles = {"one": "backbone", "two": "backbone", "ana": "volunteer", "bo": "volunteer"}
    credentials, swarms = issued(run, roles), run.ledger.swarms
    first = backbone_of(run, 0, "one", credentials["one"])
    ana = Lent(first.address, credentials["ana"])
    until(lambda: swarms.backbones(MODULAR, 0, is_staffed=True))
    done = phase_of(first, 3)
    first.close()
    second = backbone_of(run, 0, "two", credentials["two"])
    assert second.address != first.address
    bo = Lent(first.address, credentials["bo"], listens=False)
    senders = set()
    try:
        until(lambda: len(second._leader._service.waiting()) == 2)
        result = phase_of(second, 9, done.state, tuple(done.losses.tolist()))
        senders = {name.partition("/")[0] for one in swarms.steps(MODULAR, 0)[3:]
                   for name in one.blocks}  # fmt: skip
    finally:
        assert "Thank you" in ana.leave()[-1]
        bo.leave()
        second.close()
    assert len(result.losses) == 9
    assert senders == {"ana", "bo"}
