"""A pool of processes, each working on one run.

A process that is killed is restarted. One that ends with an error message for a person, and a run
that cannot begin, fail their run and the runs that wait for it. The others go on. A run that is
known to fail does so while it waits. A base model that only failed runs need is not finished: its
process is asked to end, so that a later command can continue it, and killed if it does not. A run
that another process works on already, as after a launcher that was killed, gets no second process.
"""

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from dipaco.errors import DipacoError, MachineFault
from dipaco.launch.engine import EndedWorker, Engine
from dipaco.launch.local import LocalEngine, last_line
from dipaco.launch.process_spec import ProcessSpec
from dipaco.launch.supervisor import GRACE_SECONDS, POLL_SECONDS
from dipaco.observe.events import Event
from dipaco.workers.errors import TaskFailed

# Exit codes of a process that needs a person to act: all processes of a sweep are on one machine.
FINAL_CODES = (DipacoError.exit_code, MachineFault.exit_code, TaskFailed.exit_code)
MAX_RESTARTS = 3  # restarts of the processes of one run, before it has failed
ELSEWHERE = "another process goes on with it"  # this pool did not start it and does not end it


class Job(NamedTuple):
    """One run, or the part of it up to its base model."""

    title: str
    folder: Path  # the run's folder
    verb: str  # verb of the command line that works on the run
    after: str | None  # title of the job that must be done first. This job fails with it
    follows: str | None  # title of the job that must be done or have failed first
    begin: Callable[[], Event]  # makes or finds the run, just before its process starts
    is_done: Callable[[], bool]
    refusal: Callable[[], DipacoError | None] = lambda: None  # why it would fail, if it is known


class JobPool:
    """Does jobs.

    Args:
      is_worked_on: true of a folder if another process works on the run in it.
      make_engine: makes the engine, given the log of a process by its name.
      grace_seconds: time between asking a process to end and killing it.
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
        grace_seconds: float = GRACE_SECONDS,
    ):
        self._jobs = {job.title: job for job in jobs}
        self._max_running, self._is_worked_on = max_running, is_worked_on
        self._on_event = on_event
        self._log_of = log_of
        self._waiting = list(jobs)
        self._running: dict[str, Job] = {}  # process name -> job
        self._adopted: list[Job] = []
        self._unwanted: set[str] = set()  # titles of jobs that no run waits for any more
        # Process that was asked to end -> when to kill it, in monotonic seconds.
        self._kill_at_seconds: dict[str, float] = {}
        self._restarts: dict[str, int] = {}
        self._engine = make_engine(lambda name: log_of(self._running[name]))
        self._poll_seconds, self._grace_seconds = poll_seconds, grace_seconds
        self._should_stop = False
        self._started = 0
        self.failed: dict[str, str] = {}  # title -> sentence

    @property
    def active(self) -> list[Job]:
        """The jobs that are being done."""
        return [*self._running.values(), *self._adopted]

    @property
    def still_to_do(self) -> list[Path]:
        """Folders of the runs that wait or are worked on, except the jobs that nobody needs."""
        jobs = [*self._waiting, *self.active]
        return [job.folder for job in jobs if job.title not in self._unwanted]

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
                self._refuse_known()
                self._leave_unwanted()
                self._start_due()
                for ended in self._engine.poll():
                    self._handle_end(ended)
                self._check_adopted()
                meanwhile()
                time.sleep(self._poll_seconds)
            return True
        finally:
            self._engine.stop(self._grace_seconds)

    def _refuse_known(self) -> None:
        """Fails the waiting jobs that are known to fail."""
        for job in list(self._waiting):
            if (error := job.refusal()) is not None:
                self._waiting.remove(job)
                self._fail(job, f"{type(error).__name__}: {error}")

    def _leave_unwanted(self) -> None:
        """Leaves the jobs that only failed ones begin with, and ends their processes."""
        for job in [job for job in self._waiting if not self._is_wanted(job)]:
            self._waiting.remove(job)
            is_worked_on = self._is_worked_on(job.folder)
            self._leave(job, ELSEWHERE if is_worked_on else "it is left as it is")
        for job in [job for job in self._adopted if not self._is_wanted(job)]:
            self._adopted.remove(job)
            self._leave(job, ELSEWHERE)
        now = time.monotonic()
        for name, job in self._running.items():
            if name not in self._kill_at_seconds and not self._is_wanted(job):
                self._kill_at_seconds[name] = now + self._grace_seconds
                self._engine.end(name)
                self._leave(job, "its process is asked to end")
            elif self._kill_at_seconds.get(name, math.inf) <= now:
                self._kill_at_seconds[name] = math.inf  # once
                self._engine.kill(name)
                how = f"its process did not end in {self._grace_seconds:.0f} s and is killed"
                self._leave(job, how)

    def _leave(self, job: Job, how: str) -> None:
        self._unwanted.add(job.title)
        self._on_event(Event("base_left", {"base": job.title, "how": how}, "warning"))

    def _is_wanted(self, job: Job) -> bool:
        """True if the job is a run, or if a run that begins with it has not failed."""
        later = [title for title, other in self._jobs.items() if other.after == job.title]
        return not later or not all(title in self.failed for title in later)

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
        if job.is_done() or ended.name in self._kill_at_seconds:
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
