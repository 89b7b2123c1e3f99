"""Processor time of processes."""

import contextlib
import os
from pathlib import Path


def cpu_seconds_of(process: int) -> float:
    """That a process and its children have used so far."""
    total, parents = 0.0, {process}
    rows = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            rows.append((int(stat.parent.name), int(fields[1]), int(fields[11]) + int(fields[12])))
    for pid, parent, ticks in sorted(rows):
        if pid == process or parent in parents:
            parents.add(pid)
            total += ticks / os.sysconf("SC_CLK_TCK")
    return total
