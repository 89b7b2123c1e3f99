"""Compiling program by program: at the start what a first answer needs, the rest between requests,
so that few of them wait for a compiler.
"""

import collections
import gc
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from dipaco.errors import one_line
from dipaco.serving.errors import TooManyMaps

log = logging.getLogger("dipaco")

MAPS = Path("/proc/self/maps")
MOST_MAPS = Path("/proc/sys/vm/max_map_count")
SHARE = 0.9  # share of the maps that may be used before another program is compiled


def check_maps() -> None:
    """Raises `TooManyMaps` if another program may not find room. XLA:CPU maps each function that it
    compiles, about 10,000 for an 8x8 of 0.84 M parameters. Linux allows only so many, and XLA ends
    the process when there are no more. A machine that does not say how many there are passes.
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
    is_first: bool = False  # the answer to a single short request needs it


class WarmUp:
    """Runs programs one after another.

    Args:
      on_program: called before each program of the start with its name, how many are done, and how
        many there are in all.
      is_brief: the start runs what a first answer needs, and `go_on` the rest, between requests. A
        request that needs one of those earlier compiles it.
      when_done: called when all have run.
    """

    def __init__(
        self,
        on_program: Callable[[str, int, int], object] = lambda *_: None,
        *,
        is_brief: bool = False,
        when_done: Callable[[], object] = lambda: None,
    ):
        self._on_program, self._is_brief, self._when_done = on_program, is_brief, when_done
        self._left: collections.deque[WarmUpProgram] = collections.deque()

    def run(self, programs: Sequence[WarmUpProgram]) -> None:
        """Raises `TooManyMaps` before a program for which there may be no room."""
        now = [each for each in programs if each.is_first or not self._is_brief]
        self._left.extend(each for each in programs if self._is_brief and not each.is_first)
        for number, program in enumerate(now):
            check_maps()
            self._on_program(f"compiling {program.name}", number, len(now))
            program.run()
        if not self._left:
            self._when_done()

    def go_on(self) -> bool:
        """Runs one of the programs that the start has left. False: there is none."""
        if not self._left:
            return False
        program = self._left.popleft()
        try:
            check_maps()
            program.run()
        except Exception as error:
            log.warning("%s was not compiled ahead of requests: %s", program.name, one_line(error))
            self._left.clear()
        if not self._left:
            self._when_done()
        return True


def keep_what_there_is() -> None:
    """Keeps the collector from looking at objects that are there now: half a million of JAX's and
    compiled programs, at all of which it looked every few thousand requests. Every thread waited
    meanwhile, for 0.5 s. They stay until the process ends, so nothing is lost.
    """
    gc.collect()
    gc.freeze()
