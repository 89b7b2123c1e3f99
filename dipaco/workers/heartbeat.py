"""The heartbeat of a worker: a thread that renews its leases and reads the run's command.

It runs while a task computes, and goes on through errors: a full disk, or a database that takes no
more connections. While it cannot renew, the worker does so itself between two steps
(`renew_if_silent`), or gives the task up. When the process dies or is suspended, the thread stops
too. The leases expire, and other workers take the tasks over.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Self

from dipaco import stopping
from dipaco.control.claims.queue import LEASE_SECONDS
from dipaco.control.claims.silent_workers import Counter, Silence, stalled_limit
from dipaco.control.ledger import Ledger
from dipaco.control.members.meta import RunCommand
from dipaco.control.planning.tasks import Claim
from dipaco.control.process_id import ProcessId
from dipaco.errors import DipacoError, MachineFault, RunOfOtherVersion
from dipaco.runs.version import check_program
from dipaco.workers.errors import LeaseNotRenewed, NameLost

HEARTBEATS_PER_LEASE = 4
MAX_HEARTBEAT_SECONDS = LEASE_SECONDS / HEARTBEATS_PER_LEASE  # for longer leases as well
# The worker itself renews when no renewal has come for this share of a lease.
SILENT_SHARE = 0.75


def heartbeat_seconds(lease_seconds: float) -> float:
    """Seconds from one heartbeat to the next."""
    return min(lease_seconds / HEARTBEATS_PER_LEASE, MAX_HEARTBEAT_SECONDS)


class LeaseRenewer:
    """Renews the leases of one worker, as a context manager.

    Args:
      lease_seconds: from one renewal to the end of a lease.
    """

    def __init__(self, open_ledger: Callable[[], Ledger], worker: str, lease_seconds: float):
        self._open_ledger, self._worker, self._lease_seconds = open_ledger, worker, lease_seconds
        self._claim: Claim | None = None
        self.has_lost = False  # a renewal was refused: another worker may have the task
        self.volunteers_have_come = False  # Their backbone takes the path.
        self._waited_seconds = 0.0  # seconds that the task in hand has waited for others
        self._progress = Silence()  # of the task in hand
        self._guard = threading.Lock()
        self._is_over = threading.Event()
        self._thread = threading.Thread(
            target=self._renew_until_over, name="heartbeat", daemon=True
        )
        self._is_replaced = False  # another worker has the name
        self._renewed_seconds = time.monotonic()
        self._problem = ""  # why the last heartbeat failed
        self.command = "run"  # the run's, for all of its workers

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._is_over.set()
        self._thread.join(timeout=self._lease_seconds)

    def hold(self, claim: Claim | None) -> None:
        """Sets the claim to renew from now on. None when its task is done."""
        with self._guard:
            self._claim, self.has_lost, self.volunteers_have_come = claim, False, False
            self._waited_seconds, self._progress = 0.0, Silence()
            self._renewed_seconds = time.monotonic()

    def note_wait(self, seconds: float) -> None:
        """The task in hand waited for others: for so long it was not overdue itself."""
        with self._guard:
            self._waited_seconds += seconds

    def renew(self, ledger: Ledger) -> None:
        """One heartbeat: renews the claim, marks the worker alive, looks for leases of others that
        have expired and for volunteers, reads the command.
        """
        self._renew_claim(ledger)
        self._look_for_volunteers(ledger)
        self._is_replaced = not ledger.members.heartbeat(self._worker, str(ProcessId.here()))
        ledger.reaper.reap(self._worker)
        self.receive(ledger.meta.command())

    def renew_if_silent(self, ledger: Ledger) -> None:
        """Renews the claim from the worker's own thread if no heartbeat has for most of a lease.

        Raises:
          MachineFault: that is not possible either, and the task is to be given up.
        """
        seconds = time.monotonic() - self._renewed_seconds
        if seconds < SILENT_SHARE * self._lease_seconds:
            return
        problem = self._problem or "the thread that renews leases is held up."
        logging.getLogger("dipaco").warning(
            "No lease was renewed for %.0f s: %s The worker renews it between two steps.",
            seconds,
            problem,
        )
        try:
            self._renew_claim(ledger)
        except MachineFault:
            raise
        except DipacoError as error:
            seconds = time.monotonic() - self._renewed_seconds
            if seconds > self._lease_seconds:
                raise LeaseNotRenewed(seconds=seconds, problem=error) from error

    def _renew_claim(self, ledger: Ledger) -> None:
        now, is_lost = time.monotonic(), False
        with self._guard:
            claim, waited = self._claim, self._waited_seconds
            counter = Counter(stopping.progress(), stalled_limit(self._lease_seconds))
            (stalled,) = self._progress.look({"task": counter}).values()
        if claim is not None:
            renewed = claim._replace(since=claim.since + waited)
            is_lost = not ledger.queue.renew(renewed, self._lease_seconds, stalled)
        with self._guard:
            if claim is self._claim:
                self.has_lost |= is_lost
                self._renewed_seconds = now

    def _look_for_volunteers(self, ledger: Ledger) -> None:
        with self._guard:
            claim = self._claim
        if claim is None or claim.task.kind != "train":
            return
        have_come = ledger.swarms.wants(claim.task.arm, claim.task.path, self._worker)
        with self._guard:
            if claim is self._claim:
                self.volunteers_have_come = have_come

    def receive(self, command: RunCommand) -> None:
        """Takes over a command.

        Raises:
          RunOfOtherVersion: the run was upgraded, and goes on without this process.
          NameLost: another worker was registered under this one's name.
        """
        if self._is_replaced:
            raise NameLost(name=self._worker)
        if command.version is not None:
            check_program("The run", command.version)
        self.command = command.name

    def _renew_until_over(self) -> None:
        ledger: Ledger | None = None
        while not self._is_over.wait(heartbeat_seconds(self._lease_seconds)):
            try:
                ledger = ledger or self._open_ledger()
                self.renew(ledger)
                self._problem = ""
            except (NameLost, RunOfOtherVersion):
                pass  # the worker meets the same error between two tasks, and reports it
            except Exception as error:  # whatever it is, the lease must be renewed
                if not self._problem:
                    logging.getLogger("dipaco").warning("A heartbeat failed: %s", error)
                self._problem = str(error)
                _close(ledger)
                ledger = None
        _close(ledger)


def _close(ledger: Ledger | None) -> None:
    if ledger is not None:
        with contextlib.suppress(Exception):  # it is closed because it failed
            ledger.close()
