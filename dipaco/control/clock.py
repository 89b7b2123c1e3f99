"""The clock that leases are measured by on one host.

A lease must not end because somebody set the wall clock, and must not go on while a machine slept:
so it is counted in seconds since the machine started, sleep included, and is void after a restart.
"""

import time
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def now_seconds() -> float:
    """Seconds since this machine started, the same in all its processes."""
    boottime = getattr(time, "CLOCK_BOOTTIME", None)  # Linux; elsewhere sleep is not counted
    return time.monotonic() if boottime is None else time.clock_gettime(boottime)


def epoch() -> str:
    """Names this start of this machine; times of another one mean nothing here."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return "this machine"
