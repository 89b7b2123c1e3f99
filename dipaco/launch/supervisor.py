"""Keeps as many workers alive as are wanted, until the run is finished.

A worker that was killed is started again, later each time it happens again soon; one that ended
with a sentence for a person ends the launch, since another would meet the same. A name at which one
is at work already, as after a launcher that was killed, is tried again: that one does the work. How
many are wanted may change meanwhile: `dipaco scale` writes it into the ledger, from wherever that
can be reached.
"""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from dipaco.control.ledger import Ledger
from dipaco.errors import DipacoError
from dipaco.launch.engine import Command, Ended, Engine
from dipaco.launch.errors import WorkersEnded
from dipaco.launch.event_tailer import EventTailer
from dipaco.observe.events import Event
from dipaco.runs.run import Run
from dipaco.workers.errors import NameTaken
from dipaco.workers.signals import on_sigterm

POLL_SECONDS = 0.2
GRACE_SECONDS = 30.0  # to save a phase part-way
BAD_INPUT = DipacoError.exit_code  # a worker's where a person must act
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 1.0, 60.0
STEADY_SECONDS = 120.0  # a worker that lived that long did not fail at once


class WorkerGroup(NamedTuple):
    """Workers of one role, `PREFIX-0`, `PREFIX-1`, ..."""

    role: Command
    prefix: str
    count: int

    @property
    def names(self) -> list[str]:
        return [f"{self.prefix}-{number}" for number in range(self.count)]


class Supervisor:
    """Starts workers, starts them again, and lets go of those that are no longer wanted.

    Args:
      engine: that holds them.
      crews: what is wanted; the size of the first may be changed by `dipaco scale`.
      ledger: where a dead worker's tasks are given back at once, before its leases end.
      tell: is told what happened.
      launcher: the name that `dipaco scale --launcher` may speak to.
    """

    def __init__(
        self,
        engine: Engine,
        crews: Sequence[WorkerGroup],
        ledger: Ledger,
        tell: Callable[[Event], None],
        launcher: str,
    ):
        self._engine, self._ledger, self._tell = engine, ledger, tell
        self._launcher = launcher
        self._is_over = False
        self._alive: set[str] = set()
        self._elastic, *self._others = crews
        self._heard = set(
            ledger.meta.desired_workers(launcher)
        )  # the command line is newer than these
        self._due_seconds: dict[str, float] = {}  # when to start those that are not alive
        self._started_seconds: dict[str, float] = {}
        self._wait_seconds: dict[str, float] = {}

    def end(self) -> None:
        """`keep_until_finished` returns soon. May be called by a signal handler."""
        self._is_over = True

    def keep_until_finished(self, meanwhile: Callable[[], None]) -> bool:
        """True when the run is finished, False when told to end or, with all workers gone, when the
        run was ordered to drain; calls `meanwhile` between looks.

        Raises:
          WorkersEnded: a worker ended because of something that a person must put right.
        """
        while self._ledger.queue.unfinished():
            is_draining = self._is_draining
            if self._is_over or (is_draining and not self._alive):
                return False
            self._hear_wishes()
            if not is_draining:
                self._start_due()
            for ended in self._engine.poll():
                self._bury(ended)
            meanwhile()
            time.sleep(POLL_SECONDS)
        return True

    def stop(self) -> None:
        """Ends all workers in order."""
        for ended in self._engine.stop(GRACE_SECONDS):
            self._ledger.queue.give_back_of(ended.name)

    @property
    def _is_draining(self) -> bool:
        return self._ledger.meta.command().name == "drain"

    @property
    def _wanted(self) -> dict[str, Command]:
        return {name: crew.role for crew in (self._elastic, *self._others) for name in crew.names}

    def _hear_wishes(self) -> None:
        new = [
            wish
            for wish in self._ledger.meta.desired_workers(self._launcher)
            if wish not in self._heard
        ]
        if not new:
            return
        self._heard.update(new)
        before, now = self._elastic.count, new[-1].workers
        self._elastic = self._elastic._replace(count=now)
        self._tell(Event("workers_wanted", {"now": now, "before": before}))
        for name in self._alive - self._wanted.keys():
            self._engine.end(name)

    def _start_due(self) -> None:
        now = time.monotonic()
        for name, role in self._wanted.items():
            if name in self._alive or self._due_seconds.get(name, now) > now:
                continue
            self._started_seconds[name] = now
            self._engine.start(role, name)
            self._alive.add(name)
            self._tell(Event("worker_started", {"worker": name}))

    def _bury(self, ended: Ended) -> None:
        now = time.monotonic()
        self._alive.discard(ended.name)
        is_taken = ended.code == NameTaken.exit_code
        returned = 0 if is_taken else self._ledger.queue.give_back_of(ended.name)
        if ended.code == BAD_INPUT:
            raise WorkersEnded(worker=ended.name, words=ended.words)
        if ended.name not in self._wanted:
            self._say_goodbye(ended, "it is no longer wanted")
            return
        if ended.code == 0 and self._is_draining:
            self._say_goodbye(ended, "the run was told to drain")
            return
        if ended.code == 0 and not self._ledger.queue.unfinished():
            return
        if now - self._started_seconds[ended.name] > STEADY_SECONDS:
            self._wait_seconds.pop(ended.name, None)
        wait_seconds = self._wait_seconds.get(ended.name, FIRST_WAIT_SECONDS)
        self._wait_seconds[ended.name] = min(2 * wait_seconds, LONGEST_WAIT_SECONDS)
        self._due_seconds[ended.name] = now + wait_seconds
        fields = {
            "worker": ended.name,
            "how": "another of its name is at work" if is_taken else ended.how,
            "tasks_returned": returned,
            "wait_seconds": wait_seconds,
        }
        self._tell(Event("worker_ended", fields, "warning"))

    def _say_goodbye(self, ended: Ended, reason: str) -> None:
        self._tell(Event("worker_let_go", {"worker": ended.name, "reason": reason}))


def supervise(
    opened: Run,
    engine: Engine,
    groups: Sequence[WorkerGroup],
    launcher: str,
    *,
    tensorboard: bool = False,
) -> bool:
    """Keeps workers until the run is finished (True) or this process is asked to stop (False), and
    prints their events meanwhile. All workers have left when it returns.

    Raises:
      WorkersEnded: a worker ended because of something that a person must put right.
    """
    with EventTailer(opened, tensorboard=tensorboard) as tailer:
        supervisor = Supervisor(engine, groups, opened.ledger, tailer.tell, launcher)
        with on_sigterm(supervisor.end):
            try:
                return supervisor.keep_until_finished(tailer.look)
            finally:
                supervisor.stop()
