"""Keeps a number of workers alive until the run is finished.

A worker that was killed is started again, later each time it happens again soon; one that ended
with a sentence for a person ends the launch, since another would meet the same.
"""

import time
from collections.abc import Callable

from dipaco.control.ledger import Ledger
from dipaco.errors import WorkersEnded
from dipaco.launch.engine import Ended, Engine
from dipaco.launch.roles import Role
from dipaco.observe.events import Event

POLL_SECONDS = 0.2
GRACE_SECONDS = 30.0  # to save a phase part-way
BAD_INPUT = 2  # a worker's exit code where a person must act
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 1.0, 60.0
STEADY_SECONDS = 120.0  # a worker that lived that long did not fail at once


class Supervisor:
    """Starts workers, and starts them again.

    Args:
      engine: that holds them.
      role: what each of them is.
      names: of the workers; as many are kept alive.
      ledger: where a dead worker's tasks are given back at once, before its leases end.
      tell: is told what happened.
      log_of: where a worker's last words are.
    """

    def __init__(
        self,
        engine: Engine,
        role: Role,
        names: list[str],
        ledger: Ledger,
        tell: Callable[[Event], None],
        log_of: Callable[[str], str],
    ):
        self._engine, self._role, self._ledger = engine, role, ledger
        self._tell, self._log_of = tell, log_of
        self._is_over = False
        self._alive: set[str] = set()
        self._due_seconds = dict.fromkeys(names, 0.0)  # when to start those that are not alive
        self._started_seconds: dict[str, float] = {}
        self._wait_seconds = dict.fromkeys(names, FIRST_WAIT_SECONDS)

    def end(self) -> None:
        """`keep_until_finished` returns soon. May be called by a signal handler."""
        self._is_over = True

    def keep_until_finished(self, meanwhile: Callable[[], None]) -> bool:
        """True when the run is finished, False when told to end or, with all workers gone, when the
        run was ordered to drain; calls `meanwhile` between looks.

        Raises:
          WorkersEnded: a worker ended because of something that a person must put right.
        """
        while self._ledger.unfinished():
            is_draining = self._ledger.meta("order") == "drain"
            if self._is_over or (is_draining and not self._alive):
                return False
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

    def _start_due(self) -> None:
        now = time.monotonic()
        for name in [name for name, due in self._due_seconds.items() if due <= now]:
            del self._due_seconds[name]
            self._started_seconds[name] = now
            pid = self._engine.start(self._role, name)
            self._alive.add(name)
            self._tell(Event("worker_started", {"worker": name, "pid": pid}))

    def _bury(self, ended: Ended) -> None:
        now = time.monotonic()
        self._alive.discard(ended.name)
        returned = self._ledger.queue.give_back_of(ended.name)
        if ended.code == BAD_INPUT:
            raise WorkersEnded(worker=ended.name, words=self._log_of(ended.name))
        if ended.code == 0 and not self._ledger.unfinished():
            return
        if now - self._started_seconds[ended.name] > STEADY_SECONDS:
            self._wait_seconds[ended.name] = FIRST_WAIT_SECONDS
        wait_seconds = self._wait_seconds[ended.name]
        self._wait_seconds[ended.name] = min(2 * wait_seconds, LONGEST_WAIT_SECONDS)
        self._due_seconds[ended.name] = now + wait_seconds
        fields = {
            "worker": ended.name,
            "how": ended.how,
            "tasks_returned": returned,
            "wait_seconds": wait_seconds,
        }
        self._tell(Event("worker_ended", fields, "warning"))
