"""Compiling at the start, program by program, so that no request waits for a compiler."""

import gc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from dipaco.serving.errors import TooManyMaps

MAPS = Path("/proc/self/maps")
MOST_MAPS = Path("/proc/sys/vm/max_map_count")
SHARE = 0.9  # share of the maps that may be used before another program is compiled


def check_maps() -> None:
    """Raises `TooManyMaps` if another program may not find room. A machine that does not say how
    many there are passes.

    XLA:CPU maps each function that it compiles: about 10,000 for the programs of one device (0.84 M
    parameters a path, an 8x8, two sizes of the cache). Linux allows only so many, and XLA ends the
    process when there are no more.
    """
    try:
        most, used = int(MOST_MAPS.read_text()), MAPS.read_bytes().count(b"\n")
    except (OSError, ValueError):
        return
    if used > SHARE * most:
        raise TooManyMaps(used=used, most=most)


class WarmUpProgram(NamedTuple):
    """A compiled program of serving, in the shapes that it is used in."""

    name: str  # in words, for example `prefill of 8 x 64 tokens`
    run: Callable[[], object]  # runs it once, which compiles it


class WarmUp:
    """Runs programs one after another, and calls `on_program` before each: what is done (`compiling
    prefill of 8 x 64 tokens`), how many are done, and how many there are in all.
    """

    def __init__(self, on_program: Callable[[str, int, int], object] = lambda *_: None):
        self._on_program = on_program

    def run(self, programs: Sequence[WarmUpProgram]) -> None:
        """Raises `TooManyMaps` before a program for which there may be no room."""
        for number, program in enumerate(programs):
            check_maps()
            self._on_program(f"compiling {program.name}", number, len(programs))
            program.run()


def keep_what_there_is() -> None:
    """Keeps the collector from looking at objects that are there now. It is for a process that only
    serves, once its programs are compiled.

    JAX and compiled programs are half a million objects that refer to others. Python's collector
    looks at all of them every few thousand requests, and every thread waits meanwhile: 0.5 s each
    time. They stay until the process ends, so nothing is lost by passing over them.
    """
    gc.collect()
    gc.freeze()
