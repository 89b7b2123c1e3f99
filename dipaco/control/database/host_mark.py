"""The host that works on a ledger in a file: one at a time.

SQLite's log has an index in memory that the processes of one kernel share, and so have its locks.
Two hosts that see the same folder would miss each other's facts, drop each other's claims, and
could damage the file. So a file beside the ledger names the host at work. It is looked at before
the ledger is opened, and every transaction renews its time, at most each `RENEW_SECONDS`.

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

from dipaco.control.errors import LedgerOnOtherHost
from dipaco.files import now_in, write_atomically

RENEW_SECONDS = 5.0
SILENT_SECONDS = 30.0  # a live worker has a heartbeat every 15 s
POLL_SECONDS = 0.5
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
      sleep: waits for so many seconds.
    """

    def __init__(self, ledger: Path, boot: str, sleep: Callable[[float], None] = time.sleep):
        self._ledger, self._boot, self._sleep = ledger, boot, sleep
        self._file = ledger.with_name(f"{ledger.name}-host")
        self._free: _Mark | None = None  # The mark of a host that was found to be silent.
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

    def renew(self) -> None:
        """Says that this host is at work. Takes the place of one that is silent.

        Raises:
          LedgerOnOtherHost: another has taken it.
        """
        if time.monotonic() < self._due_seconds:
            return
        if (other := self._other()) is not None:
            if other != self._free and not self._is_old(other):
                raise LedgerOnOtherHost(file=self._ledger, host=other.host)
            self._write()
            self._sleep(SETTLE_SECONDS)
            if (other := self._other()) is not None:
                raise LedgerOnOtherHost(file=self._ledger, host=other.host)
        elif self._file.exists():
            os.utime(self._file)  # the file server's time
        else:
            self._write()
        self._due_seconds = time.monotonic() + RENEW_SECONDS

    def _write(self) -> None:
        mark = {"boot": self._boot, "host": socket.gethostname()}
        write_atomically(self._file, json.dumps(mark).encode())

    def _other(self) -> _Mark | None:
        """The mark of another host, if there is one."""
        try:
            with self._file.open() as stream:  # a file server is asked whenever a file is opened
                renewed = os.fstat(stream.fileno()).st_mtime_ns
                mark = json.load(stream)
            found = _Mark(mark["boot"], mark["host"], renewed)
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None
        return None if found.boot == self._boot else found

    def _is_old(self, mark: _Mark) -> bool:
        return now_in(self._file.parent) - mark.renewed / 1e9 > SILENT_SECONDS
