"""The id of a process tells it from all other processes, in all containers of all machines.

Host name and process number do not suffice: two containers may share both, and a number is used
again. The kernel's boot, the namespace of the number, the number and the moment at which the
process began suffice.
"""

import functools
import os
from pathlib import Path
from typing import NamedTuple, Self

from dipaco.control import clock

PROC = Path("/proc")
UNKNOWN = "-"
STATE, THREADS, BEGAN = 0, 17, 19  # places in /proc/NUMBER/stat after the name
ENDED = ("Z", "X")  # states of a process of which only the number and the exit code are left


class ProcessId(NamedTuple):
    """The id of one process, written `BOOT NAMESPACE NUMBER BEGAN`."""

    boot: str  # Boot of the machine's kernel, shared by containers; the host's name if unknown.
    namespace: str  # Namespace of process numbers. A container has its own.
    pid: int
    began: str  # Clock ticks since the boot. Empty if unknown.

    @classmethod
    def here(cls) -> Self:
        """The id of this process."""
        return cls(*_of_process(os.getpid()))

    @classmethod
    def parse(cls, text: str) -> Self:
        boot, namespace, pid, began = text.split()
        return cls(boot, namespace, int(pid), began)

    def neighbour(self, text: str) -> Self | None:
        """The process of this text. None unless its number is counted as this one's is."""
        boot, namespace = (*text.split(" "), "")[:2]
        is_counted_so = (boot, namespace) == (self.boot, self.namespace) and namespace != UNKNOWN
        return self.parse(text) if is_counted_so else None

    def __str__(self) -> str:
        return " ".join(map(str, self))

    def is_over(self) -> bool:
        """True if it certainly is: its number, which counts here as well, has no process, one
        that has ended and that its parent has not waited for, or one that began at another time.
        """
        here = ProcessId.here()
        if (self.boot, self.namespace) != (here.boot, here.namespace):
            return False
        if not has_process(self.pid):
            return True
        values = _stat(self.pid)
        if values is None:
            return False
        # If the first thread alone has ended, the process lives on in the others.
        has_ended = values[STATE] in ENDED and int(values[THREADS]) <= 1
        return has_ended or values[BEGAN] != self.began


def has_process(pid: int) -> bool:
    """True if a process has this number, in the namespace of this process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


@functools.cache
def _of_process(pid: int) -> tuple[str, str, int, str]:
    """The parts of this process's id. `pid` is its number."""
    boot = clock.host()
    try:
        namespace = (PROC / "self" / "ns" / "pid").readlink().name
    except OSError:
        namespace = UNKNOWN
    return boot.replace(" ", "-"), namespace, pid, _began(pid) or UNKNOWN


def _began(pid: int) -> str | None:
    """The moment at which a process began. None if unknown."""
    values = _stat(pid)
    return None if values is None else values[BEGAN]


def _stat(pid: int) -> list[str] | None:
    """The kernel's words about a process. None if it has none."""
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    # NUMBER (NAME) STATE ...: the name may hold anything.
    return text.rpartition(")")[2].split()
