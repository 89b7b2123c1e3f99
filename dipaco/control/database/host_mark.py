"""The host that works on a ledger in a file: one at a time.

SQLite's log has an index in memory that the processes of one kernel share, and so have its locks.
Two hosts that see the same folder would miss each other's facts, drop each other's claims, and
could damage the file. So a file beside the ledger names the host at work. It is read before the
ledger is opened, and at the beginning and the end of every transaction, which renews its time at
most each `RENEW_SECONDS`.

A host is a boot of a kernel: containers of one machine are one host, and a machine that was
restarted is another. The host before it is then silent, and its place is free; likewise where a
volume was moved. Ages are differences of file times, which the file server gives: the clocks of two
hosts are never compared. A host that was suspended meanwhile is refused when it comes back.
"""

import json
import logging
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from dipaco.control import clock
from dipaco.control.errors import LedgerOnOtherHost
from dipaco.files import now_in, write_atomically

RENEW_SECONDS = 5.0
SILENT_SECONDS = 30.0  # a live worker has a heartbeat every 15 s
POLL_SECONDS = 0.5
MOST_BYTES = 4096  # of the file, at most
SETTLE_SECONDS = 0.5  # If two hosts take a free place at once, one sees the other's mark.


class _Mark(NamedTuple):
    """The content of the file."""

    boot: str
    host: str
    renewed: int  # time of the file, in nanoseconds


class HostMark:
    """The mark beside one ledger.

    Args:
      boot: names the boot of this host's kernel.
    """

    def __init__(self, ledger: Path, boot: str, sleep: Callable[[float], None] = time.sleep):
        self._ledger, self._sleep = ledger, sleep
        mark = {"boot": boot, "host": socket.gethostname()}
        self._content = json.dumps(mark).encode()
        self._own = json.dumps({"boot": boot})[1:-1].encode()  # so begins the mark of this host
        self._file = ledger.with_name(f"{ledger.name}-host")
        self._free: _Mark | None = None  # The mark of a host that was found to be silent.
        self._is_held = False  # True once this object has had the place
        self._due_seconds = 0.0  # when the mark is to be renewed

    def wait_until_free(self) -> None:
        """Returns when no other host is at work. Returns at once if none was for `SILENT_SECONDS`.

        Raises:
          LedgerOnOtherHost: one is.
        """
        before = self._other()
        if before is None or self._is_old(before):
            return
        logging.getLogger("dipaco").warning(
            "%s was in use on %s a moment ago; waiting to see whether it still is",
            self._ledger,
            before.host,
        )
        for _ in range(round(SILENT_SECONDS / POLL_SECONDS)):
            self._sleep(POLL_SECONDS)
            now = self._other()
            if now is None:
                return
            if now != before:
                raise LedgerOnOtherHost(file=self._ledger, host=now.host)
        self._free = before

    def begin(self) -> None:
        """To be called before each transaction. Takes the place of a host that is silent, and says
        now and then that this one is at work.

        Raises:
          LedgerOnOtherHost: another has taken it. It is not given back to this object, whose view
            of the ledger is of the time before.
        """
        if (other := self._other()) is not None:
            if self._is_held or (other != self._free and not self._is_old(other)):
                raise LedgerOnOtherHost(file=self._ledger, host=other.host)
            self._write()
            self._sleep(SETTLE_SECONDS)
            self.check()
        elif clock.now_seconds() < self._due_seconds:
            return
        elif self._file.exists():
            os.utime(self._file)  # the file server's time
        else:
            self._write()
        self._is_held = True
        self._due_seconds = clock.now_seconds() + RENEW_SECONDS

    def check(self) -> None:
        """Raises `LedgerOnOtherHost` if another host has taken the place. No clock is asked: that
        of a host that was suspended may have stood still.
        """
        if (other := self._other()) is not None:
            raise LedgerOnOtherHost(file=self._ledger, host=other.host)

    def _write(self) -> None:
        write_atomically(self._file, self._content)

    def _other(self) -> _Mark | None:
        """The mark of another host, if there is one."""
        try:
            # A file server is asked whenever a file is opened. Every transaction waits for this.
            descriptor = os.open(self._file, os.O_RDONLY | os.O_CLOEXEC)
            try:
                if self._own in (content := os.read(descriptor, MOST_BYTES)):
                    return None
                renewed = os.fstat(descriptor).st_mtime_ns
            finally:
                os.close(descriptor)
            mark = json.loads(content)
            return _Mark(mark["boot"], mark["host"], renewed)
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def _is_old(self, mark: _Mark) -> bool:
        try:
            return now_in(self._file.parent) - mark.renewed / 1e9 > SILENT_SECONDS
        except OSError:  # The disk is read-only or full, so the file server's time is not known.
            return False
