"""The clock that leases are measured by on one host.

A lease must not end because the wall clock was set, and must not last while a machine sleeps: it is
counted in seconds since the machine started, sleep included, and is void after a restart.
"""

import socket
import time
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def now_seconds() -> float:
    """Seconds since this machine started, the same in all its processes."""
    boottime = getattr(time, "CLOCK_BOOTTIME", None)  # Linux only. Other systems leave out sleep.
    return time.monotonic() if boottime is None else time.clock_gettime(boottime)


def host() -> str:
    """Names this boot of this machine; the machine, where a system does not name its boots."""
    return epoch() if BOOT_ID.exists() else socket.gethostname()


def epoch() -> str:
    """Names this boot of this machine. Times of another boot cannot be compared with ours."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return "this machine"
