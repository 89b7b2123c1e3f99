"""The name of a dead worker is free at once, that of a live one is taken."""

import os
import socket
import threading

import pytest

from dipaco.control import process_id as process_id_module
from dipaco.control.ledger import Ledger, open_ledger
from dipaco.control.members.meta import RunCommand
from dipaco.control.process_id import ProcessId, _began
from dipaco.workers.errors import NameLost, NameTaken
from dipaco.workers.heartbeat import LeaseRenewer
from dipaco.workers.registration import register, wait_until_name_is_free

ELSEWHERE = ProcessId("another-boot", "pid:[1]", 17, "100")


@pytest.fixture
def members(tmp_path):
    with open_ledger(tmp_path / "ledger.sqlite") as ledger:
        ledger.start({})
        yield ledger.members


def join(members, process_id):
    before = next(iter(members.list()), None)
    at = {"host": socket.gethostname(), "pid": process_id.pid, "process_id": str(process_id)}
    assert members.join("back", **at, machine="cpu", version="0", after=before)


def test_a_life_is_told_from_that_of_any_other_process(other_process):
    here, there = ProcessId.here(), other_process.process_id
    assert ProcessId.parse(str(here)) == here == ProcessId.here()
    assert (here.boot, here.namespace, here.pid) == (there.boot, there.namespace, os.getpid())
    assert not here.is_over()
    assert not there.is_over()
    assert there._replace(began="1").is_over()  # the number of a process that ended, used again
    other_process.kill()
    other_process.wait()
    assert there.is_over()
    assert here.neighbour(str(there)) == there
    assert here.neighbour("one") is None
    unknown = here._replace(namespace="-")
    assert unknown.neighbour(str(unknown)) is None, "two machines of one name"
    for other in (there._replace(boot="another"), there._replace(namespace="pid:[1]")):
        assert here.neighbour(str(other)) is None
        assert not other.is_over()  # numbers that are counted elsewhere say nothing here


def test_a_process_that_ended_and_that_its_parent_has_not_waited_for_is_over(other_process):
    """Its number stays, for ever where the first process of a container waits for none."""
    other_process.kill()
    os.waitid(os.P_PID, other_process.pid, os.WEXITED | os.WNOWAIT)
    assert _began(other_process.pid) == other_process.process_id.began
    assert other_process.process_id.is_over()


def test_a_process_is_not_over_while_a_thread_of_it_is_alive(monkeypatch, tmp_path):
    """Where its first thread has ended, the kernel calls it what one is called that has ended."""
    here = ProcessId.here()
    stat = tmp_path / str(here.pid) / "stat"
    stat.parent.mkdir()
    monkeypatch.setattr(process_id_module, "PROC", tmp_path)
    for state, threads, is_over in (("S", 2, False), ("Z", 2, False), ("Z", 1, True)):
        between = " ".join("0" * 16)
        stat.write_text(f"1 (a Z) b) {state} {between} {threads} 0 {here.began} 0 0")
        assert here.is_over() == is_over


def test_a_worker_that_left_or_died_here_is_not_waited_for(members, other_process):
    said = []
    wait_until_name_is_free(members, "back", said.append)
    join(members, ProcessId.here())
    wait_until_name_is_free(members, "back", said.append)
    join(members, other_process.process_id)
    other_process.kill()
    other_process.wait()
    wait_until_name_is_free(members, "back", said.append)
    join(members, ELSEWHERE)
    members.leave("back", str(ELSEWHERE))
    wait_until_name_is_free(members, "back", said.append)
    assert not said


def test_a_worker_that_is_silent_for_long_counts_as_dead(members, other_process):
    said = []
    join(members, other_process.process_id)  # it lives, and may be stopped
    wait_until_name_is_free(members, "back", said.append, silent_seconds=1.0)
    assert "waiting to see" in said[0]
    join(members, ELSEWHERE)
    wait_until_name_is_free(members, "back", said.append, silent_seconds=1.0)
    assert len(said) == 2


def test_a_worker_from_before_a_reboot_counts_as_dead(members, other_process):
    """Its silence is measured on a clock that began again, and its number may be another's."""
    join(members, other_process.process_id)
    members._database.epoch = "the boot after that"
    said = []
    assert wait_until_name_is_free(members, "back", said.append).pid == other_process.pid
    assert not said


@pytest.mark.parametrize(
    "live",
    [
        ELSEWHERE,
        ProcessId.here()._replace(namespace="pid:[1]"),  # another container, of this host's name
        ProcessId.here()._replace(
            namespace="pid:[1]", pid=2**22 + 1
        ),  # and of a number that is free
    ],
    ids=["another host", "a container with this number", "a container with another number"],
)
def test_a_name_with_a_new_heartbeat_is_taken(members, tmp_path, live):
    join(members, live)
    is_over = threading.Event()

    def beat():
        with open_ledger(tmp_path / "ledger.sqlite") as ledger:
            while not is_over.wait(0.7):
                ledger.members.heartbeat("back", str(live))

    beating = threading.Thread(target=beat)
    beating.start()
    try:
        with pytest.raises(
            NameTaken,
            match=f"`back` is already a worker .* process {live.pid} on {socket.gethostname()}",
        ):
            wait_until_name_is_free(members, "back", lambda _: None, silent_seconds=60.0)
    finally:
        is_over.set()
        beating.join()


def test_a_worker_that_was_silent_and_lost_its_name_ends(members, tmp_path):
    register(members, "back", "cpu", lambda _: None)
    mine = LeaseRenewer(lambda: Ledger(tmp_path / "ledger.sqlite"), "back", 60.0)
    with open_ledger(tmp_path / "ledger.sqlite") as ledger:
        mine.renew(ledger)
        join(ledger.members, ELSEWHERE)  # takes the name over
        with pytest.raises(NameLost, match="another has taken its name, `back`"):
            mine.renew(ledger)
        with pytest.raises(NameLost):  # the worker hears of it between two tasks
            mine.receive(RunCommand("run", None))
