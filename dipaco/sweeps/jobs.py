"""A pool of processes, each working on one run.

A process that is killed is restarted. One that ends with an error message for a person, and a run
that cannot begin, fail their run and the runs that wait for it. The others go on. A run that
another process works on already, as after a launcher that was killed, gets no second process.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from dipaco.errors import NOT_NOW, DipacoError, MachineFault
from dipaco.launch.engine import EndedWorker, Engine
from dipaco.launch.local import LocalEngine, last_line
from dipaco.launch.process_spec import ProcessSpec
from dipaco.launch.supervisor import GRACE_SECONDS, POLL_SECONDS
from dipaco.observe.events import Event
from dipaco.workers.errors import TaskFailed

# Exit codes of a process that needs a person to act: all processes of a sweep are on one machine.
FINAL_CODES = (DipacoError.exit_code, NOT_NOW, MachineFault.exit_code, TaskFailed.exit_code)
MAX_RESTARTS = 3  # restarts of the processes of one run, before it has failed


class Job(NamedTuple):
    """One run, or the part of it up to its base model."""

    title: str
    folder: Path  # the run's folder
    verb: str  # verb of the command line that works on the run
    after: str | None  # title of the job that must be done first. This job fails with it
    follows: str | None  # title of the job that must be done or have failed first
    begin: Callable[[], Event]  # makes or finds the run, just before its process starts
    is_done: Callable[[], bool]


class JobPool:
    """Does jobs.

    Args:
      is_worked_on: true of a folder if another process works on the run in it.
      make_engine: makes the engine, given the log of a process by its name.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        max_running: int,
        is_worked_on: Callable[[Path], bool],
        on_event: Callable[[Event], None],
        log_of: Callable[[Job], Path],
        make_engine: Callable[[Callable[[str], Path]], Engine] = LocalEngine,
        poll_seconds: float = POLL_SECONDS,
    ):
        self._max_running, self._is_worked_on = max_running, is_worked_on
        self._on_event = on_event
        self._log_of = log_of
        self._waiting = list(jobs)
        self._running: dict[str, Job] = {}  # process name -> job
        self._adopted: list[Job] = []
        self._restarts: dict[str, int] = {}
        self._engine = make_engine(lambda name: log_of(self._running[name]))
        self._poll_seconds = poll_seconds
        self._should_stop = False
        self._started = 0
        self.failed: dict[str, str] = {}  # title -> sentence

    @property
    def active(self) -> list[Job]:
        """The jobs that are being done."""
        return [*self._running.values(), *self._adopted]

    @property
    def still_to_do(self) -> list[Path]:
        """Folders of the runs that wait or are worked on."""
        return [job.folder for job in (*self._waiting, *self.active)]

    def end(self) -> None:
        """Makes `work` return soon. May be called by a signal handler."""
        self._should_stop = True

    def work(self, meanwhile: Callable[[], None]) -> bool:
        """Returns True when every job is done or has failed, False after `end`. Calls `meanwhile`
        after every poll.
        """
        try:
            while self._waiting or self.active:
                if self._should_stop:
                    return False
                self._start_due()
                for ended in self._engine.poll():
                    self._handle_end(ended)
                self._check_adopted()
                meanwhile()
                time.sleep(self._poll_seconds)
            return True
        finally:
            self._engine.stop(GRACE_SECONDS)

    def _start_due(self) -> None:
        undone = {job.title for job in [*self._waiting, *self.active]}
        for job in list(self._waiting):
            if len(self.active) >= self._max_running:
                return
            if job.after in self.failed:
                self._waiting.remove(job)
                self._fail(job, f"it waits for {job.after}.")
            elif not {job.after, job.follows} & undone:
                self._waiting.remove(job)
                self._start(job)

    def _start(self, job: Job) -> None:
        if self._is_worked_on(job.folder):
            self._adopted.append(job)
            self._on_event(Event("row_adopted", {"row": job.title}))
            return
        try:
            begun = job.begin()
        except DipacoError as error:
            self._fail(job, f"{type(error).__name__}: {error}")
            return
        self._on_event(begun)
        self._started += 1
        name = f"sweep-{self._started}"
        self._running[name] = job
        self._engine.start(ProcessSpec(job.verb, str(job.folder)), name)

    def _handle_end(self, ended: EndedWorker) -> None:
        job = self._running.pop(ended.name)
        if job.is_done():
            return
        self._restarts[job.title] = self._restarts.get(job.title, 0) + 1
        if ended.code in FINAL_CODES or self._restarts[job.title] > MAX_RESTARTS:
            log = self._log_of(job)
            self._fail(job, last_line(log) or f"its output is in {log}.")
            return
        self._on_event(Event("row_ended", {"row": job.title, "how": ended.how}, "warning"))
        self._waiting.insert(0, job)

    def _check_adopted(self) -> None:
        """Takes back unfinished jobs that other processes no longer work on."""
        for job in [job for job in self._adopted if not self._is_worked_on(job.folder)]:
            self._adopted.remove(job)
            if not job.is_done():
                self._waiting.insert(0, job)

    def _fail(self, job: Job, problem: str) -> None:
        self.failed[job.title] = problem
        self._on_event(Event("row_failed", {"row": job.title, "problem": problem}, "error"))
