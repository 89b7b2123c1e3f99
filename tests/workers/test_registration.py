"""The name of a dead worker is free at once, that of a live one is taken."""

import os
import socket
import subprocess
import sys
import threading

import pytest

from dipaco.control.ledger import open_ledger
from dipaco.workers.errors import NameTaken
from dipaco.workers.registration import wait_until_name_is_free


@pytest.fixture
def members(tmp_path):
    with open_ledger(tmp_path / "ledger.sqlite") as ledger:
        ledger.start({})
        yield ledger.members


def join(members, *, host=None, pid):
    before = next(iter(members.list()), None)
    at = {"host": host or socket.gethostname(), "pid": pid}
    assert members.join("back", **at, machine="cpu", version="0", after=before)


@pytest.fixture
def other_process():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_a_worker_that_left_or_died_here_is_not_waited_for(members, other_process):
    said = []
    wait_until_name_is_free(members, "back", said.append)
    join(members, pid=os.getpid())
    wait_until_name_is_free(members, "back", said.append)
    join(members, pid=other_process.pid)
    other_process.kill()
    other_process.wait()
    wait_until_name_is_free(members, "back", said.append)
    join(members, host="other-host", pid=1)
    members.leave("back")
    wait_until_name_is_free(members, "back", said.append)
    assert not said


def test_a_worker_that_is_silent_for_long_counts_as_dead(members, other_process):
    said = []
    join(members, pid=other_process.pid)  # it lives, and may be stopped
    wait_until_name_is_free(members, "back", said.append, silent_seconds=3.0)
    assert "waiting to see" in said[0]
    join(members, host="other-host", pid=1)
    wait_until_name_is_free(members, "back", said.append, silent_seconds=3.0)
    assert len(said) == 2


def test_a_worker_from_before_a_reboot_counts_as_dead(members, other_process):
    """Its silence is measured on a clock that began again, and its number may be another's."""
    join(members, pid=other_process.pid)
    members._database.epoch = "the boot after that"
    said = []
    assert wait_until_name_is_free(members, "back", said.append).pid == other_process.pid
    assert not said


def test_a_name_with_a_new_heartbeat_is_taken(members, tmp_path):
    join(members, host="other-host", pid=17)
    is_over = threading.Event()

    def beat():
        with open_ledger(tmp_path / "ledger.sqlite") as ledger:
            while not is_over.wait(0.7):
                ledger.members.heartbeat("back")

    beating = threading.Thread(target=beat)
    beating.start()
    try:
        with pytest.raises(
            NameTaken, match=r"`back` is already a worker .* process 17 on other-host"
        ):
            wait_until_name_is_free(members, "back", lambda _: None, silent_seconds=60.0)
    finally:
        is_over.set()
        beating.join()
