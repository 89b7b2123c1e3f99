"""The turn of a writer: a lock on a file beside the ledger, which the system grants in order.

A process that is stopped, or hangs, inside a transaction keeps its turn, and everybody else would
wait without end. So waiting has a limit, and the file says whose turn it is.
"""

import contextlib
import fcntl
import os
import socket
import threading
from collections.abc import Generator
from pathlib import Path

from dipaco.control.retry import ConnectionLost

MOST_BYTES = 200  # of what the file says


class TurnHeld(ConnectionLost):
    """The ledger {place} cannot be written: {problem}."""


class Turn:
    """The turns of one process.

    Args:
      file: beside the ledger.
      wait_seconds: for one's turn.
    """

    def __init__(self, file: Path, wait_seconds: float):
        self._file, self._wait_seconds = file, wait_seconds
        self._descriptor = _open(file)
        self._name = f"process {os.getpid()} on {socket.gethostname()}".encode()[:MOST_BYTES]

    @contextlib.contextmanager
    def taken(self) -> Generator[None]:
        """Inside, it is our turn. Raises `TurnHeld`."""
        waiter = None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiter = self._wait()
        try:
            with contextlib.suppress(OSError):  # a full disk: it is only a name
                os.pwrite(self._descriptor, self._name.ljust(MOST_BYTES), 0)
            yield
        finally:
            if waiter is None:
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            else:
                waiter.close()

    def close(self) -> None:
        os.close(self._descriptor)

    def _wait(self) -> "_Waiter":
        waiter = _Waiter(self._file)
        if waiter.is_granted.wait(self._wait_seconds) or not waiter.gives_up():
            return waiter
        who = os.pread(self._descriptor, MOST_BYTES, 0).decode(errors="replace").strip()
        number = next((word for word in who.split() if word.isdigit()), "PID")
        raise TurnHeld(
            place=self._file,
            problem=f"{who or 'another process'} has been inside a transaction for "
            f"{self._wait_seconds:.0f} s, and is stopped or hangs. There, `kill -CONT {number}` "
            f"lets it go on and `kill -9 {number}` ends it; nothing that was recorded is lost",
        )


class _Waiter:
    """A thread that waits in the system's queue, which no limit of ours shortens, with an open file
    of its own. A waiter that has given up lets go of its turn when it comes.
    """

    def __init__(self, file: Path):
        self._descriptor = _open(file)
        self._guard, self._has_given_up = threading.Lock(), False
        self.is_granted = threading.Event()
        threading.Thread(target=self._run, name="turn", daemon=True).start()

    def gives_up(self) -> bool:
        """False: its turn has come."""
        with self._guard:
            self._has_given_up = not self.is_granted.is_set()
            return self._has_given_up

    def close(self) -> None:
        os.close(self._descriptor)

    def _run(self) -> None:
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        with self._guard:
            if self._has_given_up:
                self.close()
            else:
                self.is_granted.set()


def _open(file: Path) -> int:
    return os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
