"""What this machine has fetched from buckets: at most so many bytes, of all runs together.

Files that were not used for longest go first; a run whose folder is forgotten makes room like any
other. A file that somebody has open stays readable when it goes, as files do on Unix; one that was
asked for a moment ago, and may not be open yet, does not go. So the bound may be passed for a
while: it says what is kept, and not what one task needs at once.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from dipaco.errors import BadSetting
from dipaco.store.layout import Layout

IN_USE_SECONDS = 120.0  # from when a file was asked for; its reader has opened it long before
LOOK_EVERY = 0.05  # of the bound: so much may be added before the folders are looked through again
MAKE_ROOM = 0.9  # down to so much of it, so that not every file that comes makes one go


class _Found(NamedTuple):
    used_seconds: float  # when it was used last, by the wall clock: files know no other
    num_bytes: int
    file: Path


class FileCache:
    """The fetched files under a folder of run folders.

    Args:
      runs: the folder.
      max_bytes: of them all.
      clock: seconds, as files have them.
    """

    def __init__(self, runs: Path, max_bytes: int, clock: Callable[[], float] = time.time):
        self._runs, self._max_bytes, self._clock = runs, max_bytes, clock
        self._unseen_bytes: float | None = None  # added since the last look; None = never looked

    def used(self, file: Path) -> None:
        """Somebody is about to read this file."""
        with contextlib.suppress(FileNotFoundError):
            now_seconds = self._clock()
            os.utime(file, (now_seconds, now_seconds))

    def added(self, num_bytes: int) -> None:
        """A file has come. Others may have to go."""
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
                for file in folder.rglob("*"):
                    with contextlib.suppress(FileNotFoundError):  # others make room as well
                        status = file.stat()
                        if file.is_file():
                            yield _Found(status.st_mtime, status.st_size, file)


def cache_bytes() -> int:
    """How much is kept: `$DIPACO_CACHE_GIGABYTES`, else 20 of them.

    A variable and no option, as `$DIPACO_CACHE`: both belong to the machine, and all who work on it
    share them.

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
