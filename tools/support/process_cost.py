"""What a process and its children cost so far, read from /proc (Linux)."""

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


def memory_of_all(pid: int) -> int:
    """Bytes of proportional memory of a process and its descendants."""
    pids, total = [pid], 0
    while pids:
        one = pids.pop()
        try:
            rollup = Path(f"/proc/{one}/smaps_rollup").read_text()
            total += sum(
                int(line.split()[1]) * 1024 for line in rollup.splitlines() if line[:4] == "Pss:"
            )
            pids += map(int, Path(f"/proc/{one}/task/{one}/children").read_text().split())
        except OSError:  # it ended meanwhile
            continue
    return total
