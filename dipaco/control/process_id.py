"""The life of a process: which of all processes it is, in all containers of all machines.

Host names and process numbers do not tell: two containers may have both in common, and a number is
used again. The kernel's boot, the namespace that numbers are counted in, the number and the moment
at which the process began do.
"""

import functools
import os
import socket
from pathlib import Path
from typing import NamedTuple, Self

from dipaco.control import clock

PROC = Path("/proc")
UNKNOWN = "-"
STATE, THREADS, BEGAN = 0, 17, 19  # places in /proc/NUMBER/stat after the name
ENDED = ("Z", "X")  # states of a process of which only the number and the exit code are left


class Life(NamedTuple):
    """Of one process; written `BOOT NAMESPACE NUMBER BEGAN`."""

    boot: str  # of its machine's kernel, which containers share; the host's name where unknown
    namespace: str  # of process numbers: a container has its own
    pid: int
    began: str  # in clock ticks since the boot; empty where unknown

    @classmethod
    def here(cls) -> Self:
        """Of this process."""
        return cls(*_of_process(os.getpid()))

    @classmethod
    def parse(cls, text: str) -> Self:
        boot, namespace, pid, began = text.split()
        return cls(boot, namespace, int(pid), began)

    def neighbour(self, text: str) -> Self | None:
        """The life that is written so, where its number is certainly counted as this one's is."""
        boot, namespace = (*text.split(" "), "")[:2]
        is_counted_so = (boot, namespace) == (self.boot, self.namespace) and namespace != UNKNOWN
        return self.parse(text) if is_counted_so else None

    def __str__(self) -> str:
        return " ".join(map(str, self))

    def is_over(self) -> bool:
        """Whether it certainly is: its number, which counts here as well, has no process, one
        that has ended and that its parent has not waited for, or one that began at another time.
        """
        here = Life.here()
        if (self.boot, self.namespace) != (here.boot, here.namespace):
            return False
        if not has_process(self.pid):
            return True
        values = _stat(self.pid)
        if values is None:
            return False
        # Of a process whose first thread alone has ended, the others are alive.
        has_ended = values[STATE] in ENDED and int(values[THREADS]) <= 1
        return has_ended or values[BEGAN] != self.began


def has_process(pid: int) -> bool:
    """Whether a process has this number, counted as that of this one is."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


@functools.cache
def _of_process(pid: int) -> tuple[str, str, int, str]:
    """Of this process, whose number is that."""
    boot = clock.epoch() if clock.BOOT_ID.exists() else socket.gethostname()
    try:
        namespace = (PROC / "self" / "ns" / "pid").readlink().name
    except OSError:
        namespace = UNKNOWN
    return boot.replace(" ", "-"), namespace, pid, _began(pid) or UNKNOWN


def _began(pid: int) -> str | None:
    """When a process began; None where that cannot be known."""
    values = _stat(pid)
    return None if values is None else values[BEGAN]


def _stat(pid: int) -> list[str] | None:
    """What the kernel says of a process; None where it does not."""
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    # NUMBER (NAME) STATE ...: the name may hold anything.
    return text.rpartition(")")[2].split()
