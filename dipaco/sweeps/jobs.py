"""Several runs side by side, each in a process of its own, at most so many at once.

A process that is killed is started again; one that ends with a sentence for a person fails its run
and those that wait for it, and the others go on. Where somebody works on a run already (left by a
launcher that died), nobody is added to them.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from dipaco.launch.engine import EndedWorker, Engine
from dipaco.launch.local import LocalEngine, last_line
from dipaco.launch.process_spec import ProcessSpec
from dipaco.launch.supervisor import BAD_INPUT, GRACE_SECONDS, POLL_SECONDS
from dipaco.observe.events import Event

MOST_DEATHS = 3  # of the processes of one run, before a person must look


class Job(NamedTuple):
    """One run to be done, or a part of one."""

    title: str
    folder: Path  # of the run
    verb: str  # of the command line that does it
    after: str | None  # title of a job that must be done before
    begin: Callable[[], Event]  # makes the run, or finds it; just before its process starts
    is_done: Callable[[], bool]


class JobPool:
    """Does jobs.

    Args:
      jobs: in the order in which they are wanted.
      at_once: processes.
      is_worked_on: whether a process of somebody else works on the run in a folder.
      tell: is told what happened.
      log_of: where a process's output goes, by job.
      make_engine: what holds the processes, given the log of each by its name.
      poll_seconds: between two looks.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        at_once: int,
        is_worked_on: Callable[[Path], bool],
        tell: Callable[[Event], None],
        log_of: Callable[[Job], Path],
        make_engine: Callable[[Callable[[str], Path]], Engine] = LocalEngine,
        poll_seconds: float = POLL_SECONDS,
    ):
        self._jobs = {job.title: job for job in jobs}
        self._at_once, self._is_worked_on, self._on_event = at_once, is_worked_on, tell
        self._log_of = log_of
        self._waiting = list(jobs)
        self._running: dict[str, Job] = {}  # by process name
        self._adopted: list[Job] = []
        self._deaths: dict[str, int] = {}
        self._engine = make_engine(lambda name: log_of(self._running[name]))
        self._poll_seconds = poll_seconds
        self._should_stop = False
        self._started = 0
        self.failed: dict[str, str] = {}  # title -> sentence

    @property
    def active(self) -> list[Job]:
        """Those that are being done."""
        return [*self._running.values(), *self._adopted]

    def end(self) -> None:
        """`work` returns soon. May be called by a signal handler."""
        self._should_stop = True

    def work(self, meanwhile: Callable[[], None]) -> bool:
        """True when every job is done or has failed, False when told to end; calls `meanwhile`
        between looks.
        """
        try:
            while self._waiting or self.active:
                if self._should_stop:
                    return False
                self._start_due()
                for ended in self._engine.poll():
                    self._handle_end(ended)
                self._let_go()
                meanwhile()
                time.sleep(self._poll_seconds)
            return True
        finally:
            self._engine.stop(GRACE_SECONDS)

    def _start_due(self) -> None:
        undone = {job.title for job in [*self._waiting, *self.active]}
        for job in list(self._waiting):
            if len(self.active) >= self._at_once:
                return
            if job.after in self.failed:
                self._waiting.remove(job)
                self._fail(job, f"it waits for {job.after}.")
            elif job.after not in undone:
                self._waiting.remove(job)
                self._start(job)

    def _start(self, job: Job) -> None:
        if self._is_worked_on(job.folder):
            self._adopted.append(job)
            self._on_event(Event("row_adopted", {"row": job.title}))
            return
        self._on_event(job.begin())
        self._started += 1
        name = f"sweep-{self._started}"
        self._running[name] = job
        self._engine.start(ProcessSpec(job.verb, str(job.folder)), name)

    def _handle_end(self, ended: EndedWorker) -> None:
        job = self._running.pop(ended.name)
        if job.is_done():
            return
        self._deaths[job.title] = self._deaths.get(job.title, 0) + 1
        if ended.code == BAD_INPUT or self._deaths[job.title] > MOST_DEATHS:
            log = self._log_of(job)
            self._fail(job, last_line(log) or f"its last words are in {log}.")
            return
        self._on_event(Event("row_ended", {"row": job.title, "how": ended.how}, "warning"))
        self._waiting.insert(0, job)

    def _let_go(self) -> None:
        """Of those that others worked on, and no longer do."""
        for job in [job for job in self._adopted if not self._is_worked_on(job.folder)]:
            self._adopted.remove(job)
            if not job.is_done():
                self._waiting.insert(0, job)

    def _fail(self, job: Job, problem: str) -> None:
        self.failed[job.title] = problem
        self._on_event(Event("row_failed", {"row": job.title, "problem": problem}, "error"))
