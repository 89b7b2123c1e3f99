"""Keeps the wanted number of workers alive until the run is finished.

A worker that was killed, or met a fault of its machine, is started again, after a wait that doubles
if it soon ends again. A refused worker (exit code 2 or 6) is started again too while others of its
group work, since it may be on another machine. If all workers of a group were refused, or fail
repeatedly before they take part, the fault is not their machines' and the launch ends. It also ends
when the run cannot go on without a task that has failed. If a worker of the same name is still
running, as after a launcher that was killed, the name is tried again later. If it keeps running on
another machine, another launcher has this one's name, and the launch ends. `dipaco scale` changes
the wanted number through the ledger.
"""

import math
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from dipaco.control.ledger import Ledger
from dipaco.control.members.meta import LauncherState
from dipaco.control.process_id import ProcessId
from dipaco.errors import NOT_NOW, DipacoError, MachineFault
from dipaco.launch.engine import UNSEEN, EndedWorker, Engine, ProcessCommand
from dipaco.launch.errors import LauncherElsewhere, WorkersEnded, WorkersNeverJoined
from dipaco.launch.event_tailer import EventTailer
from dipaco.observe.events import Event
from dipaco.runs.run import Run
from dipaco.stopping import STOPPING_SECONDS, on_sigterm, patience
from dipaco.workers.errors import NameTaken, TaskFailed
from dipaco.workers.failing import refuse_stuck

POLL_SECONDS = 0.2  # between two looks at the processes
LOOK_SECONDS = 1.0  # between two looks at the ledger, which every launcher of a run asks
GRACE_SECONDS = 90.0  # time to save a phase part-way; a slow link may need a minute to send it
REFUSED = (DipacoError.exit_code, NOT_NOW)  # exit codes of a worker that a person must help
ORDERED = (-signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP)  # no crash: it was told to end
FAILED = 1  # exit code of an error that the program does not know, such as a failing import
# The launch ends after so many failed starts of each worker of a group, or so many of one worker
# whose name is in use on another machine.
FAILED_STARTS = 3
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 1.0, 60.0
STEADY_SECONDS = 120.0  # a worker that ran this long starts again with the first wait


class WorkerGroup(NamedTuple):
    """Workers with one command line, `PREFIX-0`, `PREFIX-1`, ..."""

    spec: ProcessCommand
    prefix: str
    count: int

    @property
    def names(self) -> list[str]:
        return [f"{self.prefix}-{number}" for number in range(self.count)]


class Supervisor:
    """Starts workers, restarts them, and ends workers that are no longer wanted.

    Args:
      groups: the wanted workers. `dipaco scale` changes the size of the first group.
      ledger: the tasks of a dead worker go back to its queue before their leases expire.
      launcher: name of this launcher, for `dipaco scale --launcher`.
    """

    def __init__(
        self,
        engine: Engine,
        groups: Sequence[WorkerGroup],
        ledger: Ledger,
        on_event: Callable[[Event], None],
        launcher: str,
    ):
        self._engine, self._ledger, self._on_event = engine, ledger, on_event
        self._launcher = launcher
        self._should_stop = False
        self._alive: set[str] = set()
        self._elastic, *self._others = groups
        self._given = self._elastic.count
        self._known: set[str] = set()  # requests that are carried out or outdated
        self._due_seconds: dict[str, float] = {}  # dead worker -> when to start it again
        self._started_seconds: dict[str, float] = {}
        self._wait_seconds: dict[str, float] = {}
        self._process_before: dict[str, str] = {}  # worker -> process that had its name before it
        self._failed_starts: Counter[str] = Counter()  # worker -> consecutive failed starts
        self._taken_starts: Counter[str] = (
            Counter()
        )  # worker -> consecutive starts under a taken name
        self._refused: set[str] = set()  # workers whose last end was a refusal
        self._go_on_with_state()

    def end(self) -> None:
        """Makes `keep_until_finished` return soon. May be called by a signal handler."""
        self._should_stop = True

    def keep_until_finished(self, meanwhile: Callable[[], None]) -> bool:
        """Returns True when the run is finished. Returns False after `end`, or when the run is
        draining and all workers have left. Calls `meanwhile` after every poll.

        Raises:
          WorkersEnded: every worker of a group ended with an error that a person must correct.
          WorkersNeverJoined: every worker of a group failed while it started, several times.
          LauncherElsewhere: another launcher of this name is at work on another machine.
          TaskFailed: the run cannot go on without a task that has failed.
        """
        is_draining, next_look_seconds = False, -math.inf
        while True:
            if time.monotonic() >= next_look_seconds:
                if self._ledger.queue.is_finished():
                    return True
                refuse_stuck(self._ledger.failures.stuck())
                is_draining = self._is_draining
                self._read_wanted()
                next_look_seconds = time.monotonic() + LOOK_SECONDS
            if self._should_stop or (is_draining and not self._alive):
                return False
            if not is_draining:
                self._start_due()
            for ended in self._engine.poll():
                self._handle_end(ended)
                next_look_seconds = -math.inf  # the worker may have done the last task
            meanwhile()
            time.sleep(POLL_SECONDS)

    def stop(self) -> None:
        """Ends all workers in order."""
        ended = self._engine.stop(GRACE_SECONDS)
        process_ids = self._process_ids if ended else {}
        for each in ended:
            if self._has_ended(each.name, process_ids):
                self._ledger.queue.give_back_of(each.name)

    @property
    def _is_draining(self) -> bool:
        return self._ledger.meta.command().name == "drain"

    @property
    def _wanted(self) -> dict[str, ProcessCommand]:
        groups = (self._elastic, *self._others)
        return {name: group.spec for group in groups for name in group.names}

    def _go_on_with_state(self) -> None:
        """A launcher that is started again keeps as many workers as before. If it is given another
        number, that number overrides all requests until now.
        """
        before = self._ledger.meta.launcher(self._launcher)
        if before is not None and before.given == self._given:
            self._known = set(before.requests)
            self._want(before.wanted)
            return
        desired = self._ledger.meta.desired_workers(self._launcher)
        self._known = {each.identity for each in desired}
        self._note_state()

    def _read_wanted(self) -> None:
        desired = self._ledger.meta.desired_workers(self._launcher)
        new = [each for each in desired if each.identity not in self._known]
        if not new:
            return
        self._known = {each.identity for each in desired}
        self._want(new[-1].workers)
        self._note_state()
        for name in self._alive - self._wanted.keys():
            self._engine.end(name)

    def _want(self, count: int) -> None:
        before = self._elastic.count
        self._elastic = self._elastic._replace(count=count)
        if count != before:
            self._on_event(Event("workers_wanted", {"now": count, "before": before}))

    def _note_state(self) -> None:
        state = LauncherState(self._given, self._elastic.count, sorted(self._known))
        self._ledger.meta.note_launcher(self._launcher, state)

    def _start_due(self) -> None:
        now = time.monotonic()
        due = [
            (name, spec)
            for name, spec in self._wanted.items()
            if name not in self._alive and self._due_seconds.get(name, now) <= now
        ]
        if due:
            process_ids = self._process_ids
            self._process_before |= {
                name: process_ids[name] for name, _ in due if name in process_ids
            }
        for name, spec in due:
            self._started_seconds[name] = now
            self._engine.start(spec, name)
            self._alive.add(name)
            self._on_event(Event("worker_started", {"worker": name}))

    @property
    def _process_ids(self) -> dict[str, str]:
        return {member.name: member.process_id for member in self._ledger.members.list()}

    def _handle_end(self, ended: EndedWorker) -> None:
        now = time.monotonic()
        self._alive.discard(ended.name)
        is_taken = ended.code == NameTaken.exit_code
        returned = 0 if is_taken else self._give_back_of(ended)
        if ended.code in (0, NOT_NOW) and self._is_draining and ended.name in self._wanted:
            self._report_departure(ended, "the run was told to drain")
            return
        self._note_refusal(ended)
        self._note_failed_start(ended)
        self._note_taken_start(ended)
        if ended.name not in self._wanted:
            self._report_departure(ended, "it is no longer wanted")
            return
        if ended.code == 0 and self._ledger.queue.is_finished():
            return
        if now - self._started_seconds[ended.name] > STEADY_SECONDS:
            self._wait_seconds.pop(ended.name, None)
        wait_seconds = self._wait_seconds.get(ended.name, FIRST_WAIT_SECONDS)
        self._wait_seconds[ended.name] = min(2 * wait_seconds, LONGEST_WAIT_SECONDS)
        self._due_seconds[ended.name] = now + wait_seconds
        fields = {
            "worker": ended.name,
            "how": "another worker of its name is running" if is_taken else _how(ended),
            "tasks_returned": returned,
            "wait_seconds": wait_seconds,
        }
        self._on_event(Event("worker_ended", fields, "warning"))

    def _has_ended(self, name: str, process_ids: Mapping[str, str]) -> bool:
        """True if the member of this name has ended: it is the started worker, or its process is
        gone. An older worker may still have the name, for which the started one has waited.
        """
        process_id = process_ids.get(name)
        if (
            process_id is not None
            and (neighbour := ProcessId.here().neighbour(process_id)) is not None
        ):
            return neighbour.is_over()
        return process_id is None or process_id != self._process_before.get(name)

    def _give_back_of(self, ended: EndedWorker) -> int:
        if not self._has_ended(ended.name, self._process_ids):
            return 0
        is_crash = ended.code < 0 and ended.code not in (*ORDERED, UNSEEN)
        crash = f"its process ended by {ended.how}" if is_crash else ""
        words = ended.last_line if ended.code else ""
        return self._ledger.queue.give_back_of(ended.name, crash=crash, last_words=words)

    def _note_refusal(self, ended: EndedWorker) -> None:
        """Raises `WorkersEnded` if all workers of its group were refused, and `TaskFailed` if the
        run cannot go on.
        """
        refuse_stuck(self._ledger.failures.stuck())
        if ended.code not in REFUSED:
            self._refused.discard(ended.name)
            return
        self._refused.add(ended.name)
        for group in (self._elastic, *self._others):
            if ended.name in group.names and self._refused.issuperset(group.names):
                raise WorkersEnded(worker=ended.name, words=ended.last_line)

    def _note_failed_start(self, ended: EndedWorker) -> None:
        """Raises `WorkersNeverJoined` if no worker of its group takes part."""
        before = self._process_before.get(ended.name)
        if ended.code != FAILED or self._process_ids.get(ended.name) != before:
            self._failed_starts.pop(ended.name, None)
            return
        self._failed_starts[ended.name] += 1
        for group in (self._elastic, *self._others):
            fewest = min((self._failed_starts[name] for name in group.names), default=0)
            if ended.name in group.names and fewest >= FAILED_STARTS:
                raise WorkersNeverJoined(count=fewest, worker=ended.name, words=ended.last_line)

    def _note_taken_start(self, ended: EndedWorker) -> None:
        """Raises `LauncherElsewhere` if a process of another machine keeps the worker's name."""
        held = {member.name: member for member in self._ledger.members.list()}.get(ended.name)
        is_taken = ended.code == NameTaken.exit_code and held is not None
        if not is_taken or ProcessId.here().neighbour(held.process_id) is not None:
            self._taken_starts.pop(ended.name, None)
            return
        self._taken_starts[ended.name] += 1
        if self._taken_starts[ended.name] >= FAILED_STARTS:
            raise LauncherElsewhere(name=self._launcher, worker=ended.name, host=held.host)

    def _report_departure(self, ended: EndedWorker, reason: str) -> None:
        self._on_event(Event("worker_left", {"worker": ended.name, "reason": reason}))


def _how(ended: EndedWorker) -> str:
    """The end of a worker in words, with its last line of output if that is an error's sentence."""
    has_sentence = ended.code in (FAILED, *REFUSED, MachineFault.exit_code, TaskFailed.exit_code)
    return f"{ended.how}: {ended.last_line}" if has_sentence and ended.last_line else ended.how


def supervise(
    opened: Run,
    engine: Engine,
    groups: Sequence[WorkerGroup],
    launcher: str,
    *,
    trackers: Sequence[str] = (),
) -> bool:
    """Keeps workers alive until the run is finished (True) or this process is asked to stop
    (False), and prints their events. All workers have ended when it returns.

    Raises:
      WorkersEnded, WorkersNeverJoined, LauncherElsewhere, TaskFailed: a person must act.
    """
    with EventTailer(opened, trackers=trackers) as tailer:
        supervisor = Supervisor(engine, groups, opened.ledger, tailer.show, launcher)
        with on_sigterm(supervisor.end):
            try:
                return supervisor.keep_until_finished(tailer.look)
            finally:
                with patience(STOPPING_SECONDS):  # also after Ctrl-C
                    supervisor.stop()
