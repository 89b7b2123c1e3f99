"""The console of a worker: a progress bar, a line for every event, and the results at the end."""

import sys
import time
from collections.abc import Callable, Sequence
from typing import TextIO

from dipaco.control.planning.tasks import Claim, Fact, PathTrained
from dipaco.data.reading import PrepareProgress
from dipaco.errors import DipacoError
from dipaco.evaluation.tables import render_text
from dipaco.observe.events import Event
from dipaco.observe.fact_events import fact_events
from dipaco.observe.progress import Progress
from dipaco.observe.terminal import bullets, terminal_width
from dipaco.observe.writers import Closing, JsonLines, Several
from dipaco.plural import counted
from dipaco.runs.reading.events import terminal_line, trackers_of
from dipaco.runs.reading.progress import progress_of
from dipaco.runs.reading.report import renewed_report
from dipaco.runs.rules import phrase
from dipaco.runs.run import Run
from dipaco.workers.callbacks import Callbacks

SECONDS_BETWEEN_MESSAGES = 2.0
SECONDS_BETWEEN_COUNTS = 10.0


class ConsoleReporter(Callbacks, Closing):
    """Callbacks of a worker: one bar for the whole run, and every event as a line on the terminal
    and a record in events.jsonl.

    Args:
      trackers: names of `observe.trackers.TRACKERS` that get numbers too.
      stream: receives the bar and the lines. None = standard error.
      listener: called with every event.
    """

    def __init__(
        self,
        run: Run,
        *,
        trackers: Sequence[str] = (),
        stream: TextIO | None = None,
        listener: Callable[[Event], None] | None = None,
    ):
        self._run = run
        done, total = progress_of(run, with_partial_snapshots=True)
        tracked = trackers_of(run, trackers, lambda line: self._bar.say(line))
        self._log = Several(JsonLines(run.layout.events, clock=time.time), tracked)
        self._listener = listener
        self._bar = Progress("prepare", total, done_steps=done, stream=stream)
        self._done, self._total = done, total
        self._began_seconds = self._message_seconds = 0.0
        self._counted_seconds = time.monotonic()

    def close(self) -> None:
        self._bar.close()
        self._log.close()

    def greet(self, *, is_new: bool) -> None:
        """Prints the title of a new run, or the progress of a run that continues."""
        if is_new:
            self._bar.say(title_of(self._run))
        elif not self._run.ledger.queue.is_finished():
            self._write(Event("resumed", {"done": self._done, "total": self._total}))

    def compare_machines(self, then: str, now: str) -> None:
        """Warns if the run began on another kind of machine, which may change its last bits."""
        if then != now:
            self._write(Event("machine_changed", {"then": then, "now": now}, "warning"))

    def task_started(self, claim: Claim) -> None:
        self._began_seconds = time.monotonic()
        done = None
        if self._began_seconds - self._counted_seconds > SECONDS_BETWEEN_COUNTS:
            # Steps of other workers count too. Only the ledger has them.
            self._counted_seconds = self._began_seconds
            done, _ = progress_of(self._run, with_partial_snapshots=True)
        self._bar.begin(str(claim.task), done_steps=done)

    def prepare_progressed(self, progress: PrepareProgress) -> None:
        if progress.message:
            self._bar.say(progress.message)
        elif time.monotonic() - self._message_seconds > SECONDS_BETWEEN_MESSAGES:
            self._message_seconds = time.monotonic()
            of = f" of {progress.total / 1e6:.1f}" if progress.total else ""
            self._bar.say(f"{progress.stage}: {progress.done / 1e6:.1f}{of} MB")

    def step_taken(self, claim: Claim, loss: float, tokens: int) -> None:
        self._bar.advance(1, tokens=tokens, loss=loss)

    def claim_lost(self, claim: Claim) -> None:
        self._write(Event("claim_lost", {"task": str(claim.task)}, "warning"))

    def paused(self) -> None:
        self._write(Event("run_paused", {"order": "pause"}))

    def task_released(self, claim: Claim, step: int) -> None:
        self._write(Event("saved_part_way", {"task": str(claim.task), "step": step}))

    def task_postponed(self, claim: Claim, error: DipacoError) -> None:
        self._write(Event("postponed", {"task": str(claim.task), "problem": str(error)}, "warning"))

    def task_failed(self, claim: Claim, reason: str, *, is_final: bool) -> None:
        name, level = ("task_given_up", "error") if is_final else ("task_failed", "warning")
        self._write(Event(name, {"task": str(claim.task), "reason": reason}, level))

    def task_finished(self, claim: Claim, facts: list[Fact]) -> None:
        seconds = time.monotonic() - self._began_seconds
        for fact in facts:
            if isinstance(fact, PathTrained):
                self._bar.advance(0, bytes_sent=fact.bytes_down + fact.bytes_up)
            for event in fact_events(fact, claim, self._run.config, seconds):
                self._write(event)

    def _write(self, event: Event) -> None:
        self._log.write(event)
        self._bar.say(terminal_line(event, self._run.ledger))
        if self._listener is not None:
            self._listener(event)


def title_of(run: Run) -> str:
    """Two lines: the run's name and sizes, then the sources of its text and its first modules."""
    config, rules = run.config, f"; {phrase(run.rules)}" if run.rules else ""
    return (
        f"{config.name}, seed {config.seed}: {counted(config.num_paths, 'path')}, "
        f"{counted(len(config.topology.modules), 'module')}{rules}\n"
        f"{_origin_of(run)}"
    )


def _origin_of(run: Run) -> str:
    data, origin = run.config.data, run.given("origin")
    if run.given("tokenizer") is not None:
        tokenizer = "that of the model it starts from"
    else:
        tokenizer = data.tokenizer or "trained on it"
    starts = f"; starts with {origin}" if origin else ""
    return f"text: {', '.join(data.sources)}; tokenizer: {tokenizer}{starts}"


def print_results(run: Run) -> None:
    """Prints the report of a finished run and the names of its files."""
    report, files = renewed_report(run)
    width = terminal_width()
    print(f"\n{render_text(report.table, width)}\n")
    print(bullets(report.notes, width))
    print(f"\nWritten: {', '.join(map(run.address.place_of, files.values()))}")
    sys.stdout.flush()
