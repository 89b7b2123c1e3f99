"""Progress of compiling at the start of a server: a bar on a terminal, plain lines in a log.

compiling prefill of 8 x 64 tokens: 3 of 26 programs (12%), 41 s left
"""

import time
from collections.abc import Callable
from typing import Self, TextIO

from dipaco.observe.progress import Progress


class CompileProgress:
    """A context manager. Inside it, `show` is called before each program.

    Args:
      stream: the output stream; standard error if left out.
      clock: monotonic seconds.
    """

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic):
        self._stream, self._clock = stream, clock
        self._progress: Progress | None = None
        self._done = self._total = 0

    def show(self, title: str, done: int, total: int) -> None:
        """Shows the current work, such as `compiling prefill of 8 x 64 tokens`, and its number."""
        self._count(done)
        self._total = total
        if self._progress is None:
            self._progress = Progress(
                title,
                total,
                unit="programs",
                times_first=True,
                stream=self._stream,
                clock=self._clock,
            )
        self._progress.begin(title)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_) -> None:
        if self._progress is not None:
            if kind is None:
                self._count(self._total)
            self._progress.close()

    def _count(self, done: int) -> None:
        if self._progress is not None:
            self._progress.advance(done - self._done)
        self._done = done
