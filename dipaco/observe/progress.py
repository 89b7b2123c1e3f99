"""Progress: the position of a stage, its speed, and its remaining time.

A terminal shows a bar, and so does a notebook. Other streams get a plain line every ten seconds:

    phase 2 of 4: 60 of 80 steps (75%), loss 4.812, 12,310 tokens/s, 3.4 MB sent, 8 s left
"""

import collections
import html
import sys
import time
from collections.abc import Callable
from typing import Any, Self, TextIO

from rich.filesize import decimal

from dipaco.observe.writers import Closing

LINE_SECONDS = 10.0  # time between plain lines
LEAST_BAR = 10  # columns of a terminal
NOTEBOOK_LINES, NOTEBOOK_SECONDS = 4, 0.5  # lines below the bar; the least time between two draws


class Progress(Closing):
    """The progress of a stage of `total_steps`.

    Args:
      title: name of the stage, such as "base model".
      total_steps: steps of the whole stage.
      done_steps: steps done before an interruption. They do not count as speed.
      unit: plural of the thing that is counted. Empty = only the share that is done is shown.
      times_first: if True, the first steps count for the time left. False where they include
        compilation.
      stream: receives the lines, or the bar if it is a terminal. None = standard error.
      clock: monotonic seconds.
    """

    def __init__(
        self,
        title: str,
        total_steps: int,
        *,
        done_steps: int = 0,
        unit: str = "steps",
        times_first: bool = False,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._title, self._total_steps, self._unit = title, total_steps, unit
        self._first_step = self._done_steps = done_steps
        self._busy_seconds = 0.0  # between `begin` and the last `advance`
        # Steps that count for the time left, and their time.
        self._timed_steps, self._timed_seconds, self._has_begun = 0, 0.0, times_first
        self._tokens = self._bytes_sent = 0
        self._loss: float | None = None
        self._stream = stream or sys.stderr
        self._clock = clock
        self._mark_seconds = self._printed_seconds = clock()
        self._printed_step = -1
        self._bar = None
        if self._stream.isatty():
            self._bar = _Bar(title, total_steps, done_steps, self._stream, counts=bool(unit))
        elif type(self._stream).__module__ == "ipykernel.iostream":
            self._bar = _NotebookBar(title, total_steps, done_steps)

    def begin(self, title: str, *, done_steps: int | None = None) -> None:
        """Begins the steps of `title`. The time since the last step does not count as speed. Nor do
        steps that others did meanwhile, if `done_steps` gives the new count.
        """
        self.rename(title)
        if done_steps is not None:
            self._first_step += done_steps - self._done_steps
            self._done_steps = done_steps
        self._mark_seconds = self._clock()

    def advance(
        self, steps: int = 1, *, tokens: int = 0, bytes_sent: int = 0, loss: float | None = None
    ) -> None:
        """Adds `steps` with their trained tokens and sent bytes, and shows the latest loss."""
        now = self._clock()
        self._busy_seconds += now - self._mark_seconds
        if steps and self._has_begun:
            self._timed_steps += steps
            self._timed_seconds += now - self._mark_seconds
        self._has_begun = self._has_begun or steps > 0
        self._mark_seconds = now
        self._done_steps += steps
        self._total_steps = max(self._total_steps, self._done_steps)  # some steps may be repeated
        self._tokens += tokens
        self._bytes_sent += bytes_sent
        self._loss = self._loss if loss is None else loss
        if self._bar:
            self._bar.show(self._done_steps, self._total_steps, self._facts())
        elif self._clock() - self._printed_seconds >= LINE_SECONDS:
            self._print()

    def rename(self, title: str) -> None:
        """Changes the title."""
        if self._bar and title != self._title:
            self._bar.rename(title)
        self._title = title

    def say(self, text: str) -> None:
        """Prints a line, above the bar if there is one."""
        if self._bar:
            self._bar.say(text)
        else:
            print(text, file=self._stream, flush=True)

    def close(self) -> None:
        """Ends the bar, or prints the steps since the last line."""
        if self._bar:
            self._bar.close()
        elif self._done_steps not in (self._printed_step, self._first_step):
            self._print()

    def _print(self) -> None:
        share = self._done_steps / max(self._total_steps, 1)
        steps = f"{share:.0%}"
        if self._unit:
            steps = f"{self._done_steps} of {self._total_steps} {self._unit} ({steps})"
        print(f"{self._title}: {', '.join([steps, *self._facts()])}", file=self._stream, flush=True)
        self._printed_seconds, self._printed_step = self._clock(), self._done_steps

    def _facts(self) -> list[str]:
        """Loss, speed, bytes and time left, if known."""
        elapsed = self._busy_seconds
        left = self._total_steps - self._done_steps
        facts = []
        if self._loss is not None:
            facts.append(f"loss {self._loss:.3f}")
        if self._tokens and elapsed > 0:
            facts.append(f"{self._tokens / elapsed:,.0f} tokens/s")
        if self._bytes_sent:
            facts.append(f"{decimal(self._bytes_sent)} sent")
        if self._timed_steps and left > 0 and self._timed_seconds > 0:
            facts.append(f"{time_left(left * self._timed_seconds / self._timed_steps)} left")
        return facts


class _Bar:
    """The terminal's bar."""

    def __init__(
        self, title: str, total_steps: int, done_steps: int, stream: TextIO, *, counts: bool
    ):
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TaskProgressColumn, TextColumn
        from rich.progress import Progress as RichProgress
        from rich.table import Column

        self._rich = RichProgress(
            TextColumn("{task.description}", style="bold"),
            BarColumn(bar_width=None),
            (MofNCompleteColumn if counts else TaskProgressColumn)(
                table_column=Column(no_wrap=True)
            ),
            TextColumn("{task.fields[facts]}", style="dim"),
            console=Console(file=stream),
            expand=True,
            redirect_stdout=sys.stdout.isatty(),  # else it takes what goes to a file
        )
        self._task = self._rich.add_task(title, total=total_steps, completed=done_steps, facts="")
        self._rich.start()

    def show(self, done_steps: int, total_steps: int, facts: list[str]) -> None:
        width, (task,) = self._rich.console.width, self._rich.tasks
        room = width - len(f"{task.description}  {done_steps}/{total_steps} ") - LEAST_BAR
        shown = list(facts)
        while shown and len(" · ".join(shown)) > room:
            shown.pop(-2 if len(shown) > 1 else -1)  # the time left is dropped last
        self._rich.update(
            self._task, completed=done_steps, total=total_steps, facts=" · ".join(shown)
        )

    def rename(self, title: str) -> None:
        self._rich.update(self._task, description=title)

    def say(self, text: str) -> None:
        self._rich.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        self._rich.stop()


class _NotebookBar:
    """The bar of a notebook: one output that changes, with the newest lines below it."""

    def __init__(self, title: str, total_steps: int, done_steps: int):
        from IPython.display import display  # ty: ignore[import-not-found]

        self._title, self._at = title, (done_steps, total_steps, [])
        self._lines: collections.deque[str] = collections.deque(maxlen=NOTEBOOK_LINES)
        self._drawn_seconds = time.monotonic()
        self._handle: Any = display(self._content(), raw=True, display_id=True)

    def show(self, done_steps: int, total_steps: int, facts: list[str]) -> None:
        self._at = done_steps, total_steps, facts
        if time.monotonic() - self._drawn_seconds >= NOTEBOOK_SECONDS:
            self._draw()

    def rename(self, title: str) -> None:
        self._title = title

    def say(self, text: str) -> None:
        self._lines += text.splitlines()
        self._draw()

    def close(self) -> None:
        self._draw()

    def _draw(self) -> None:
        self._drawn_seconds = time.monotonic()
        self._handle.update(self._content(), raw=True)

    def _content(self) -> dict[str, str]:
        done, total, facts = self._at
        at = f"{done} of {total}: {' · '.join([self._title, *facts])}"
        bar = f'<progress value="{done}" max="{total}"></progress> {html.escape(at)}'
        lines = "\n".join(self._lines)
        return {
            "text/plain": f"{at}\n{lines}",
            "text/html": f"{bar}<pre>{html.escape(lines)}</pre>",
        }


def time_left(seconds: float) -> str:
    """A duration in words: 8 s, 3 min 05 s, 2 h 10 min."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


class CompileProgress:
    """Progress of compiling at the start of a server: a bar on a terminal, plain lines in a log.

        compiling prefill of 8 x 64 tokens: 3 of 26 programs (12%), 41 s left

    A context manager. Inside it `show` is called before each program.

    Args:
      stream: receives the lines or the bar. None = standard error.
      clock: monotonic seconds.
    """

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic):
        self._stream, self._clock = stream, clock
        self._progress: Progress | None = None
        self._done = self._total = 0

    def show(self, title: str, done: int, total: int) -> None:
        """Shows the next program, such as `compiling prefill of 8 x 64 tokens`."""
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
