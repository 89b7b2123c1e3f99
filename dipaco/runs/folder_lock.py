"""The lock of a run folder: every process that works on the run from this folder holds it.

The first process holds it exclusively while it puts the run in order, then shares it. The system
releases the lock of a process that dies, so an exclusive lock proves that no other is at work.

A folder that was made for a run which then did not begin is removed again.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

from dipaco.errors import RunBusy
from dipaco.files import translate_os_errors
from dipaco.runs.opening import check_folder
from dipaco.store.address import Address, Where
from dipaco.store.layout import Layout

SETUP_SECONDS = 60.0  # beginning a run takes less, unless it copies a large checkpoint
RETRY_SECONDS = 0.1
# The lock's file is opened again so many times if it is never the file that has its name: some file
# systems over a network number a file differently each time that they are asked.
MOST_OPENINGS = 20


class FolderLock:
    """A held lock."""

    def __init__(self, stream: Any, *, is_exclusive: bool):
        self._stream = stream
        self.is_exclusive = is_exclusive  # False after `share`.
        self.may_be_shared = not is_exclusive

    def share(self) -> None:
        """Lets other processes work on the run."""
        self.may_be_shared = True
        fcntl.flock(self._stream, fcntl.LOCK_SH)


@contextlib.contextmanager
def folder_lock(where: Where) -> Generator[FolderLock]:
    """Holds the lock of a run's folder: exclusively for the first process, shared for the rest.

    Raises:
      RunBusy: another process has held it exclusively for `SETUP_SECONDS`.
      RunIsFile, FolderHoldsSweep, FolderHoldsOther, NotWritable, DiskFull: there can be no run in
        this folder.
    """
    check_folder(Address.of(where))
    folder = Address.of(where).folder
    lock = Layout(folder).lock
    deadline = time.monotonic() + SETUP_SECONDS
    openings = 0
    while True:
        is_new = not folder.exists()
        with translate_os_errors(folder):
            try:
                folder.mkdir(parents=True, exist_ok=True)
                stream = lock.open("a")
            except (FileNotFoundError, FileExistsError):
                # Perhaps removed meanwhile, by the process that had made it.
                openings += 1
                if folder.exists() or openings == MOST_OPENINGS:
                    raise
                time.sleep(RETRY_SECONDS)
                continue
        with stream:
            is_exclusive = _wait(stream, deadline, where)
            openings += 1
            if not _is_of(stream, lock) and openings < MOST_OPENINGS:
                time.sleep(RETRY_SECONDS)
                continue  # the process that had made the folder has removed it
            held = FolderLock(stream, is_exclusive=is_exclusive)
            try:
                yield held
            except BaseException:
                if is_new and not held.may_be_shared:
                    _remove_unused(folder, lock)
                raise
            return


def _wait(stream: Any, deadline: float, where: Where) -> bool:
    """Waits for the lock. Returns whether it is exclusive. Raises `RunBusy`."""
    while not _try_lock(stream, fcntl.LOCK_EX):
        if _try_lock(stream, fcntl.LOCK_SH):
            return False
        if time.monotonic() > deadline:
            raise RunBusy(folder=where)
        time.sleep(RETRY_SECONDS)
    return True


def _is_of(stream: Any, lock: Path) -> bool:
    """True if the open file is the one that other processes find there."""
    try:
        return os.path.samestat(os.fstat(stream.fileno()), lock.stat())
    except OSError:
        return False


def _remove_unused(folder: Path, lock: Path) -> None:
    """Removes a folder that holds nothing but its lock, which is held exclusively."""
    with contextlib.suppress(OSError):
        if os.listdir(folder) == [lock.name]:
            lock.unlink()
            folder.rmdir()


def is_in_use(where: Where) -> bool:
    """True if a process works on a run from this folder now."""
    lock = Layout(Address.of(where).folder).lock
    if not lock.exists():
        return False
    with lock.open("a") as stream:
        return not _try_lock(stream, fcntl.LOCK_EX)


def _try_lock(stream: Any, kind: int) -> bool:
    """Takes a lock of this kind if it is free. Never waits."""
    try:
        fcntl.flock(stream, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
