"""A ledger in a file serves one host at a time; a restarted machine, or a moved volume, goes on."""

import os

import pytest

from dipaco.control import clock
from dipaco.control.database import host_mark
from dipaco.control.database.host_mark import SILENT_SECONDS, HostMark
from dipaco.control.errors import LedgerOnOtherHost
from dipaco.control.ledger import Ledger
from tests.control.conftest import do_until

OLD_SECONDS = 2 * SILENT_SECONDS


@pytest.fixture
def file(tmp_path):
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def on(file, monkeypatch):
    """`on("boot")`: the ledger as a process on a host of that boot opens it."""
    opened = []

    def open_on(boot):
        with monkeypatch.context() as patch:
            patch.setattr(clock, "epoch", lambda: boot)
            opened.append(Ledger(file))
        return opened[-1]

    yield open_on
    for ledger in opened:
        ledger.close()


@pytest.fixture
def first(on):
    """A new run, on the first host."""
    ledger = on("first boot")
    ledger.start({"config": "{}"})
    return ledger


@pytest.fixture
def while_waiting(monkeypatch):
    """`while_waiting(do)`: from now on nothing sleeps, and `do` happens instead; a list of when."""
    counted = []

    def set_up(do):
        def sleep(_):
            counted.append(1)
            do()

        init = HostMark.__init__
        monkeypatch.setattr(
            HostMark, "__init__", lambda self, ledger, boot: init(self, ledger, boot, sleep)
        )
        return counted

    return set_up


def age(file, seconds):
    mark = file.with_name(f"{file.name}-host")
    moment = mark.stat().st_mtime - seconds
    os.utime(mark, (moment, moment))


def test_a_second_host_is_refused_while_the_first_is_at_work(on, plan, while_waiting, monkeypatch):
    monkeypatch.setattr(host_mark, "RENEW_SECONDS", 0.0)
    first = on("first boot")
    first.start({"config": "{}"})
    claim = do_until(first, plan, "train")
    while_waiting(lambda: first.queue.renew(claim))
    with pytest.raises(LedgerOnOtherHost, match="--database postgresql://HOST/NAME"):
        on("second boot")
    assert first.queue.is_held(claim)
    assert on("first boot").queue.is_held(claim)  # another process of the first host


@pytest.mark.parametrize(
    ("seconds", "waits"),
    [(OLD_SECONDS, False), (0.0, True), (-26 * 3600.0, True)],
    ids=["long ago", "just now", "and the clock was set back"],
)
def test_a_machine_that_was_restarted_goes_on(file, on, first, while_waiting, seconds, waits):
    assert first.queue.claim("one") is not None
    age(file, seconds)
    looks = while_waiting(lambda: None)
    second = on("second boot")
    assert bool(looks) is waits
    assert second.queue.claim("two") is None
    assert second.queue.give_back_all() == 1  # as when a run is opened where no process works
    assert second.queue.claim("two") is not None


def test_a_host_that_was_suspended_and_replaced_is_refused(file, on, first, while_waiting):
    while_waiting(lambda: None)
    age(file, OLD_SECONDS)
    second = on("second boot")
    assert second.queue.claim("two") is not None
    with pytest.raises(LedgerOnOtherHost):
        first.queue.give_back_all()  # would drop the other's claims
    with pytest.raises(LedgerOnOtherHost):
        first.members.heartbeat("one", "its process")
    assert [held.worker for held in second.queue.held()] == ["two"]


def test_a_host_that_was_suspended_inside_a_transaction_commits_nothing(file, first, while_waiting):
    while_waiting(lambda: None)

    def write_and_sleep():
        with first._database.transaction():
            first._database.change("put_meta", key="inside", value="")
            age(file, OLD_SECONDS)
            HostMark(file, "second boot").begin()

    with pytest.raises(LedgerOnOtherHost):
        write_and_sleep()
    assert first.meta.get("inside") is None


def test_a_host_that_was_replaced_does_not_come_back_when_the_other_is_idle(
    file, on, first, while_waiting
):
    """Its view of the file is of the time before."""
    while_waiting(lambda: None)
    age(file, OLD_SECONDS)
    on("second boot").queue.give_back_all()
    age(file, OLD_SECONDS)
    with pytest.raises(LedgerOnOtherHost):
        first.queue.give_back_all()
    assert on("first boot").queue.give_back_all() == 0  # opened again


def test_hosts_that_do_not_name_their_boot_are_told_apart(file, while_waiting, monkeypatch):
    """As on macOS."""
    while_waiting(lambda: None)
    monkeypatch.setattr(clock, "BOOT_ID", file.with_name("none"))

    def opened_on(host):
        monkeypatch.setattr("socket.gethostname", lambda: host)
        return Ledger(file)

    first = opened_on("first host")
    first.start({"config": "{}"})
    age(file, OLD_SECONDS)
    opened_on("second host").queue.give_back_all()
    with pytest.raises(LedgerOnOtherHost):
        first.queue.give_back_all()


def test_of_two_hosts_that_take_a_free_place_at_once_one_gets_it(file, on, first, while_waiting):
    age(file, OLD_SECONDS)
    other = HostMark(file, "third boot")
    while_waiting(other._write)  # it had seen the free place too
    second = on("second boot")
    with pytest.raises(LedgerOnOtherHost):
        second.queue.claim("two")


def test_whoever_only_reads_takes_no_place(file, on, first, while_waiting):
    while_waiting(lambda: None)
    age(file, OLD_SECONDS)
    assert on("second boot").queue.held() == []
    assert first.queue.claim("one") is not None
