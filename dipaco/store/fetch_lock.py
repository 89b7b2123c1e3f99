"""A lock between the processes of one machine: one process fetches an object, the others wait."""

import contextlib
import fcntl
import time
from collections.abc import Generator
from pathlib import Path

import xxhash

from dipaco.files import translate_os_errors

FETCH_LOCK_SECONDS = 60.0  # the longest wait for another process that fetches the same object


@contextlib.contextmanager
def fetch_lock(root: Path, name: str, purpose: str = "fetch") -> Generator[None]:
    """Lets one process of this machine at a time fetch an object. One that has waited for
    `FETCH_LOCK_SECONDS` goes on without the lock: its holder may be suspended.

    Args:
      root: the run's folder on this machine.
      name: of the object. Several share a lock, so none may be taken inside another.
      purpose: each has its own locks.
    """
    file = root / "turns" / f"{purpose}-{xxhash.xxh3_64_hexdigest(name.encode())[:2]}"
    with translate_os_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        stream = file.open("a")
    deadline = time.monotonic() + FETCH_LOCK_SECONDS
    with stream:
        while time.monotonic() < deadline:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(0.02)
        yield
