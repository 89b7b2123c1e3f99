"""Files fetched from buckets, of all runs on this machine: a bounded number of bytes.

The least recently used files are removed first, whichever run they belong to. A file that a process
has open stays readable after it is removed, as on any Unix. A file that was asked for a moment ago
may not be open yet, and stays. So the cache may exceed its bound for a while: the bound limits what
is kept, not what one task needs at once. A snapshot that was not sent cannot be fetched again: it
stays for a month, and is not counted.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from dipaco.errors import BadSetting
from dipaco.store.layout import Layout
from dipaco.store.verification import UNSENT

IN_USE_SECONDS = 120.0  # A file that was asked for stays so long. Its reader opens it much sooner.
LOOK_EVERY = 0.05  # Share of the bound. Folders are listed again after so many new bytes.
UNSENT_DAYS = 30.0  # An unsent snapshot stays so long after it was last looked at.
DAY_SECONDS = 86400.0
MAKE_ROOM = (
    0.9  # Share of the bound that removal goes down to, so that not every new file removes one.
)


class _Found(NamedTuple):
    used_seconds: float  # When it was used last. Wall clock, as file times are.
    num_bytes: int
    file: Path


class FileCache:
    """The fetched files under a folder of run folders."""

    def __init__(self, runs: Path, max_bytes: int, clock: Callable[[], float] = time.time):
        self._runs, self._max_bytes, self._clock = runs, max_bytes, clock
        self._unseen_bytes: float | None = None  # Added since the last look. None = never looked.

    def used(self, file: Path) -> None:
        """Marks a file that is about to be read."""
        with contextlib.suppress(FileNotFoundError):
            now_seconds = self._clock()
            os.utime(file, (now_seconds, now_seconds))

    def added(self, num_bytes: int) -> None:
        """Counts a new file, and removes others if the bound is exceeded."""
        if self._unseen_bytes is not None:
            self._unseen_bytes += num_bytes
            if self._unseen_bytes < LOOK_EVERY * self._max_bytes:
                return
        self._unseen_bytes = 0.0
        found = sorted(self._files())
        total = sum(each.num_bytes for each in found)
        if total <= self._max_bytes:
            return
        for used_seconds, num_bytes, file in found:
            if total <= MAKE_ROOM * self._max_bytes:
                return
            if used_seconds < self._clock() - IN_USE_SECONDS:
                file.unlink(missing_ok=True)
                total -= num_bytes

    def _files(self) -> Iterator[_Found]:
        for run in self._runs.iterdir():
            for folder in Layout(run).fetched:
                files = list(folder.rglob("*"))
                unsent = self._unsent(files)
                for file in files:
                    if unsent and not unsent.isdisjoint(file.parents):
                        continue
                    with contextlib.suppress(FileNotFoundError):  # another process removed it
                        status = file.stat()
                        if file.is_file():
                            yield _Found(status.st_mtime, status.st_size, file)

    def _unsent(self, files: list[Path]) -> set[Path]:
        """Snapshots that only this machine has, without snapshots of runs that were given up."""
        oldest_seconds = self._clock() - UNSENT_DAYS * DAY_SECONDS
        found = set()
        for marker in (file for file in files if file.name == UNSENT):
            with contextlib.suppress(FileNotFoundError):
                if marker.stat().st_mtime > oldest_seconds:
                    found.add(marker.parent)
        return found


def cache_bytes() -> int:
    """The cache's bound: `$DIPACO_CACHE_GIGABYTES`, or 20 GB.

    An environment variable rather than an option, as `$DIPACO_CACHE`: both belong to the machine.

    Raises:
      BadSetting.
    """
    text = os.environ.get("DIPACO_CACHE_GIGABYTES") or "20"
    try:
        num_bytes = float(text) * 1e9
    except ValueError:
        num_bytes = -1.0
    if not 0 <= num_bytes < float("inf"):
        raise BadSetting(
            name="DIPACO_CACHE_GIGABYTES", value=text, expected="a number of gigabytes"
        )
    return round(num_bytes)
