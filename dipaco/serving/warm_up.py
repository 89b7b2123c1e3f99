"""Compiling at the start, program by program, so that no request waits for a compiler."""

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from dipaco.serving.memory_maps import check_maps


class WarmUpProgram(NamedTuple):
    """A compiled program of serving, in the shapes that it is used in."""

    name: str  # in words: `prefill of 8 x 64 tokens`
    run: Callable[[], object]  # runs it once, which compiles it
    verb: str = "compiling"  # what that does


class WarmUp:
    """Runs programs one after another, and tells how far it is. Any threads may call it: each runs
    its own programs in order.

    Args:
      on_program: called before each with what is done (`compiling prefill of 8 x 64 tokens`), how
        many are done, and how many there are in all.
    """

    def __init__(self, on_program: Callable[[str, int, int], object] = lambda *_: None):
        self._on_program, self._lock = on_program, threading.Lock()
        self._done = self._expected = 0
        self._is_stopped = False

    def expect(self, number: int) -> None:
        """So many programs more will be run: with all of them announced, the total is right."""
        self._expected += number

    def stop(self) -> None:
        """No other program begins, in any thread."""
        self._is_stopped = True

    def run(self, programs: Sequence[WarmUpProgram]) -> None:
        """Runs them, in order.

        Raises:
          TooManyMaps: before a program for which there may be no room.
        """
        for program in programs:
            if self._is_stopped:
                return
            check_maps()
            with self._lock:
                self._expected = max(self._expected, self._done + 1)
                self._on_program(f"{program.verb} {program.name}", self._done, self._expected)
            program.run()
            with self._lock:
                self._done += 1
