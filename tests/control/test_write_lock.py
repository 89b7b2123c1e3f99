"""A process that is stopped inside a transaction of SQLite: others wait for a limited time, are
told which process it is and what to do, and go on when it goes on or is gone.
"""

import contextlib
import fcntl
import logging
import os
import signal
import socket
import subprocess
import sys

import pytest

from dipaco.control.database import retry, sqlite
from dipaco.control.database.sqlite import SQLite
from dipaco.control.database.write_lock import WriteLock, WriteLockHeld, _Waiter
from dipaco.control.errors import DatabaseUnreachable
from dipaco.control.ledger import Ledger, open_ledger
from dipaco.control.process_id import ProcessId

pytestmark = pytest.mark.process

STOPS_ITSELF = """
import os, signal, sys
from pathlib import Path
from dipaco.control.database.sqlite import SQLite
database = SQLite(Path(sys.argv[1]))
with database.transaction():
    database.change("put_meta", key="who", value="stopped")
    os.kill(os.getpid(), signal.SIGSTOP)
database.close()
"""


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "ledger.sqlite"
    with open_ledger(file) as ledger:
        ledger.start({})
    return file


@pytest.fixture
def stopped(file):
    """A process that has stopped inside a transaction."""
    with subprocess.Popen([sys.executable, "-c", STOPS_ITSELF, str(file)]) as process:
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        yield process
        process.kill()


def test_the_process_that_holds_the_turn_is_named_with_what_to_do(file, stopped):
    database = SQLite(file, turn_seconds=0.05)
    who = f"process {stopped.pid} on {socket.gethostname()} has been inside a transaction"
    said = f"{who}.*`kill -CONT {stopped.pid}` .*`kill -9 {stopped.pid}`"
    for _ in range(3):
        with pytest.raises(WriteLockHeld, match=said), database.transaction():
            raise AssertionError("it is another's turn")
    assert database.rows("get_meta", key="who") == [], "readers do not wait"
    database.close()


@pytest.mark.parametrize("number", [signal.SIGCONT, signal.SIGKILL])
def test_others_go_on_when_it_goes_on_or_is_gone(file, stopped, number):
    database = SQLite(file, turn_seconds=0.05)
    with pytest.raises(WriteLockHeld), database.transaction():
        pass
    stopped.send_signal(number)
    assert stopped.wait(timeout=60) == (0 if number == signal.SIGCONT else -signal.SIGKILL)
    with database.transaction():
        database.change("remember_meta", key="who", value="other")
    who = "stopped" if number == signal.SIGCONT else "other"
    assert database.rows("get_meta", key="who") == [(who,)]
    with open_ledger(file) as third:
        third.meta.remember("one more", "writes")
    database.close()


@pytest.mark.parametrize("when", ["begin", "is_granted_within"])
def test_who_is_interrupted_while_it_waits_leaves_the_turn_to_others(file, monkeypatch, when):
    first, second, third = (SQLite(file, turn_seconds=seconds) for seconds in (0.0, 60.0, 5.0))
    done = getattr(_Waiter, when)

    def interrupt(waiter, *seconds):
        """As Ctrl-C does, wherever the process is."""
        if not seconds:
            done(waiter)
        raise KeyboardInterrupt

    with first.transaction(), monkeypatch.context() as patch:
        patch.setattr(_Waiter, when, interrupt)
        with pytest.raises(KeyboardInterrupt), second.transaction():
            raise AssertionError("it is another's turn")
    for database in (third, second):
        with database.transaction():
            database.change("remember_meta", key="who", value="comes later")
    for database in (first, second, third):
        database.close()


@pytest.mark.parametrize("has_waited", [False, True], ids=["it was free", "it was waited for"])
def test_who_is_interrupted_as_the_turn_is_given_back_has_given_it_back(
    file, monkeypatch, has_waited
):
    """As by Ctrl-C in a notebook, whose process goes on."""
    first, second, third = (SQLite(file, turn_seconds=seconds) for seconds in (60.0, 60.0, 5.0))
    flock, begin, end = fcntl.flock, _Waiter.begin, _Waiter.end
    interrupts, held = [], contextlib.ExitStack()

    def begun(waiter):
        begin(waiter)
        held.close()

    def flock_or_interrupt(descriptor, operation):
        if operation == fcntl.LOCK_UN and interrupts:
            raise interrupts.pop()
        flock(descriptor, operation)

    def end_or_interrupt(waiter):
        if interrupts:
            raise interrupts.pop()
        end(waiter)

    monkeypatch.setattr(fcntl, "flock", flock_or_interrupt)
    monkeypatch.setattr(_Waiter, "begin", begun)
    monkeypatch.setattr(_Waiter, "end", end_or_interrupt)
    if has_waited:
        held.enter_context(first.transaction())
    with pytest.raises(KeyboardInterrupt), second.transaction():
        interrupts.append(KeyboardInterrupt())
    assert not interrupts
    with third.transaction():
        pass
    for each in (first, second, third):
        each.close()


@pytest.mark.parametrize("how", ["give_back", "close"])
def test_a_turn_that_was_waited_for_and_never_begun_with_is_left_to_others(
    tmp_path, monkeypatch, how
):
    first, second, third = (WriteLock(tmp_path / "turn", seconds) for seconds in (60.0, 60.0, 5.0))
    begin = _Waiter.begin
    monkeypatch.setattr(_Waiter, "begin", lambda waiter: (begin(waiter), first.give_back()))
    first.take()
    second.take()
    getattr(second, how)()
    third.take()
    for each in (first, third) if how == "close" else (first, second, third):
        each.close()


@pytest.mark.parametrize(
    ("holder", "advises"),
    [
        (ProcessId.here(), False),
        (ProcessId.here()._replace(began="0"), False),  # it has ended, and its number is ours
        (ProcessId.here()._replace(namespace="pid:[1]", pid=2**22 + 1), True),
        (ProcessId.here()._replace(boot="another", pid=2**22 + 1), True),
    ],
    ids=["this process", "one that has ended", "in another container", "on another machine"],
)
def test_nobody_is_told_to_end_this_process_or_one_that_has_certainly_ended(
    file, monkeypatch, holder, advises
):
    """The file keeps the name of who wrote it last, until the next one does. Containers may have
    the host's name in common, and each counts processes by itself.
    """
    first, second = SQLite(file), SQLite(file, turn_seconds=0.05)
    with first.transaction():
        with monkeypatch.context() as patch:
            patch.setattr(ProcessId, "here", lambda: holder)
            patch.setattr("os.getpid", lambda: holder.pid)
            written = WriteLock(file.with_name("elsewhere"), 0.0)
            written.take()
            text = file.with_name("elsewhere").read_bytes()
            written.close()
        file.with_name(f"{file.name}-turn").write_bytes(text)
        with pytest.raises(WriteLockHeld) as held:
            second.transaction().__enter__()
    said = str(held.value)
    assert (f"`kill -9 {holder.pid}`" in said) == advises
    assert (f"process {holder.pid} on {socket.gethostname()} has been" in said) == advises
    assert ("another thread of this process" in said) == (holder == ProcessId.here())
    for database in (first, second):
        database.close()


def test_a_worker_waits_says_so_and_gives_up_after_as_long_as_for_a_server(
    file, stopped, monkeypatch, caplog
):
    monkeypatch.setattr(sqlite, "TURN_SECONDS", 0.05)
    monkeypatch.setattr(retry, "RETRY_SECONDS", 0.3)
    ledger = Ledger(file)
    with (
        caplog.at_level(logging.WARNING, "dipaco"),
        pytest.raises(DatabaseUnreachable, match=rf"kill -CONT {stopped.pid}"),
    ):
        ledger.queue.claim("w")
    assert f"process {stopped.pid}" in caplog.text
    stopped.send_signal(signal.SIGCONT)
    stopped.wait(timeout=60)
    assert ledger.queue.claim("w") is not None
    ledger.close()
