"""The write lock of a ledger: a lock on a file beside it, which the system grants in order.

A process that is stopped, or hangs, inside a transaction keeps the lock, and everybody else would
wait without end. So waiting has a limit, and the file names the holder.
"""

import _thread
import contextlib
import fcntl
import os
import socket
import threading
from pathlib import Path

from dipaco.control.database.retry import ConnectionLost
from dipaco.control.process_id import ProcessId

MOST_BYTES = 200  # Length of the file's text.


class WriteLockHeld(ConnectionLost):
    """The ledger {place} cannot be written: {problem}. Waiting for it."""


class WriteLock:
    """One process's use of the lock. An interrupt may come anywhere. Then `give_back` is to be
    called, though `take` has not returned or `give_back` has been called.

    Args:
      wait_seconds: limit of a wait for the lock.
    """

    def __init__(self, file: Path, wait_seconds: float):
        self._file, self._wait_seconds = file, wait_seconds
        self._descriptor = _open(file)
        self._waiter: _Waiter | None = None  # Its file has the lock, or will have it.
        name = f"process {os.getpid()} on {socket.gethostname()}\n{ProcessId.here()}"
        self._name = name.encode()[:MOST_BYTES]

    def take(self) -> None:
        """Takes the lock until `give_back`. Raises `WriteLockHeld`."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._waiter = _Waiter(self._file)
            self._waiter.begin()
            if not self._waiter.is_granted_within(self._wait_seconds):
                self.give_back()
                raise WriteLockHeld(place=self._file, problem=self._problem()) from None
        with contextlib.suppress(OSError):  # a full disk: it is only a name
            os.pwrite(self._descriptor, self._name.ljust(MOST_BYTES), 0)

    def give_back(self) -> None:
        """Releases the lock, and waits for it no more. A second call changes nothing."""
        if self._waiter is not None:
            self._waiter.end()
            self._waiter = None
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        self.give_back()
        os.close(self._descriptor)

    def _problem(self) -> str:
        """Names the holder, and advises. The file has the name of the last holder that could write
        it. If this cannot be the present holder, there is no advice to end it.
        """
        name = os.pread(self._descriptor, MOST_BYTES, 0).decode(errors="replace").strip()
        who, _, process_id = name.partition("\n")
        number = next((word for word in who.split() if word.isdigit()), "PID")
        advice = (
            f". There, `kill -CONT {number}` lets it go on and `kill -9 {number}` ends it; nothing "
            "that was recorded is lost"
        )
        if name == self._name.decode():
            who, advice = "another thread of this process, or a process without its name there,", ""
        elif not who or _has_ended(process_id):
            who, advice = "a process that has not written its name there", ""
        return (
            f"{who} has been inside a transaction for {self._wait_seconds:.0f} s, and is stopped "
            f"or hangs{advice}"
        )


def _has_ended(process_id: str) -> bool:
    """True if the process that wrote this text has certainly ended."""
    neighbour = ProcessId.here().neighbour(process_id)
    return neighbour is not None and neighbour.is_over()


class _Waiter:
    """A thread that waits in the system's queue, which no limit of ours shortens, with its own open
    file. A waiter that has given up releases the lock when it gets it.

    Both threads first say where they are and then look at the other, so that one thread lets go. A
    lock between them might be kept by an interrupted thread.

    No `Event`, nor a `Thread`, whose start waits for one: they are written in Python, and may turn
    an interrupt into an error of their own.
    """

    def __init__(self, file: Path):
        self._opened = os.fdopen(_open(file), "r+b", buffering=0)
        self._has_given_up = self._is_granted = False
        self._until_granted = threading.Lock()
        self._until_granted.acquire()

    def begin(self) -> None:
        _thread.start_new_thread(self._run, ())

    def is_granted_within(self, seconds: float) -> bool:
        """Waits; to be asked once."""
        return self._until_granted.acquire(timeout=seconds)

    def end(self) -> None:
        """Releases the lock, or waits for it no more. A second call changes nothing."""
        self._has_given_up = True
        if self._is_granted:
            self._opened.close()

    def _run(self) -> None:
        fcntl.flock(self._opened, fcntl.LOCK_EX)
        self._is_granted = True
        self._until_granted.release()
        if self._has_given_up:
            self._opened.close()


def _open(file: Path) -> int:
    return os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
