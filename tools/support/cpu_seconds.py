"""Processor time of processes."""

import contextlib
import os
from pathlib import Path


def cpu_seconds_of(process: int) -> float:
    """Processor time of a process and its children so far, also of ended ones."""
    total, parents = 0.0, {process}
    rows = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            ticks = sum(map(int, fields[11:15]))  # its own, and of ended children it waited for
            rows.append((int(stat.parent.name), int(fields[1]), ticks))
    for pid, parent, ticks in sorted(rows):
        if pid == process or parent in parents:
            parents.add(pid)
            total += ticks / os.sysconf("SC_CLK_TCK")
    return total
