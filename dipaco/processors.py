"""The processors of this machine: how many this process may use, and which they are."""

import os
import platform
from pathlib import Path

_LINUX = Path("/proc/cpuinfo")


def num_processors() -> int:
    """Number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def processor_model() -> str:
    """The maker's name for the processor, `AMD EPYC` for example. Its kind if Linux has none."""
    return _told("model name") or platform.processor() or platform.machine()


def is_from_amd() -> bool:
    """False where that is not known: on no Linux."""
    return _told("vendor_id") == "AuthenticAMD"


def _told(name: str) -> str | None:
    """The entry of Linux for the first processor under a name."""
    try:
        lines = _LINUX.read_text().splitlines()
    except OSError:
        return None
    told = (line.partition(":") for line in lines)
    return next((value.strip() for key, _, value in told if key.strip() == name), None)
