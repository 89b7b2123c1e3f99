"""The memory maps of this process, of which Linux allows only so many.

XLA:CPU maps each function that it compiles: about 10,000 for the programs of one device (0.84 M
parameters a path, an 8x8, two sizes of the cache), and XLA ends the process where there are no
more.
"""

from pathlib import Path

from dipaco.serving.errors import TooManyMaps

MAPS = Path("/proc/self/maps")
MOST_MAPS = Path("/proc/sys/vm/max_map_count")
SHARE = 0.9  # of them may be there before another program is compiled


def check_maps() -> None:
    """Raises `TooManyMaps` where another program may not find room; never where the machine does
    not say how many there are.
    """
    try:
        most, used = int(MOST_MAPS.read_text()), MAPS.read_bytes().count(b"\n")
    except (OSError, ValueError):
        return
    if used > SHARE * most:
        raise TooManyMaps(used=used, most=most)
