"""Locks between the processes of one machine: one process makes or fetches something, the others
wait. The system releases the lock of a process that ends, so a lock lives as long as its holder.
"""

import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import IO

import xxhash

from dipaco import stopping
from dipaco.files import translate_os_errors
from dipaco.store.errors import LockHeld

SAID_SECONDS = 60.0  # A wait of so long is told of, once.
POLL_SECONDS = 0.02


@contextlib.contextmanager
def fetch_lock(root: Path, name: str, purpose: str = "fetch") -> Generator[None]:
    """Lets one process of this machine at a time fetch an object. Raises as `held_lock`.

    Args:
      root: the run's folder on this machine.
      name: of the object. Several share a lock, so none may be taken inside another.
      purpose: each has its own locks.
    """
    digest = xxhash.xxh3_64_hexdigest(name.encode())
    with held_lock(root / "turns" / f"{purpose}-{digest[:2]}"):
        yield


@contextlib.contextmanager
def held_lock(file: Path) -> Generator[None]:
    """Holds the lock of a file. Waits as long as another process has it.

    Raises:
      LockHeld: this process was told to end while it waited.
    """
    with translate_os_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        stream = file.open("a")
    began, is_said = time.monotonic(), False
    with stream:
        while not _try_lock(stream):
            if stopping.is_over():
                raise LockHeld(file=file)
            if not is_said and time.monotonic() - began > SAID_SECONDS:
                is_said = True
                logging.getLogger("dipaco").warning(
                    "Waiting for another process of this machine, which has locked %s. "
                    "`fuser %s` names it.", file, file,
                )  # fmt: skip
            time.sleep(POLL_SECONDS)
        yield


@contextlib.contextmanager
def locked_folder(folder: Path) -> Generator[None]:
    """Says that a live process uses a folder, where the file system has locks."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def is_locked(folder: Path) -> bool:
    """True if a live process is in `locked_folder` with this folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        return not _try_lock(descriptor)
    except OSError:  # no locks here
        return False
    finally:
        os.close(descriptor)


def _try_lock(stream: IO[str] | int) -> bool:
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
