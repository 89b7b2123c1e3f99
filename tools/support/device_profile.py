"""Where a device's time went, from a trace of `jax.profiler`."""

import collections
from pathlib import Path

from jax.profiler import ProfileData


def kernel_seconds(folder: Path) -> dict[str, float]:
    """Seconds of each kernel on the first GPU, by its name, longest first; empty without one."""
    totals: collections.Counter[str] = collections.Counter()
    for file in sorted(folder.rglob("*.xplane.pb")):
        for plane in ProfileData.from_file(str(file)).planes:
            if plane.name != "/device:GPU:0":
                continue
            for line in plane.lines:
                if line.name.startswith("Stream"):
                    for event in line.events:
                        totals[event.name] += event.duration_ns / 1e9
    return dict(totals.most_common())
