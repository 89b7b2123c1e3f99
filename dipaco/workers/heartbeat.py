"""The heartbeat of a worker: a thread that renews its leases and reads the run's command.

It has its own connection and runs while a task computes. When the process dies or is suspended, the
thread stops too; the leases expire, and other workers take the tasks over.
"""

import contextlib
import threading
from collections.abc import Callable
from typing import Self

import dipaco
from dipaco.control.ledger import Ledger
from dipaco.control.meta import RunCommand
from dipaco.control.queue import LEASE_SECONDS
from dipaco.control.tasks import Claim
from dipaco.errors import DipacoError, RunOfOtherVersion
from dipaco.workers.errors import NameLost
from dipaco.workers.life import Life

HEARTBEATS_PER_LEASE = 4
MAX_HEARTBEAT_SECONDS = LEASE_SECONDS / HEARTBEATS_PER_LEASE  # with longer leases too


class LeaseRenewer:
    """Renews the leases of one worker, as a context manager.

    Args:
      open_ledger: a connection for the thread.
      worker: its name.
      lease_seconds: from one renewal to the end of a lease.
    """

    def __init__(self, open_ledger: Callable[[], Ledger], worker: str, lease_seconds: float):
        self._open_ledger, self._worker, self._lease_seconds = open_ledger, worker, lease_seconds
        self._claims: tuple[Claim, ...] = ()
        self._lost: set[Claim] = set()
        self._guard = threading.Lock()
        self._is_over = threading.Event()
        self._thread = threading.Thread(
            target=self._renew_until_over, name="heartbeat", daemon=True
        )
        self._is_replaced = False  # another worker has the name
        self.command = "run"  # the run's, for all of its workers

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._is_over.set()
        self._thread.join(timeout=self._lease_seconds)

    def hold(self, *claims: Claim) -> None:
        """Sets the claims to renew from now on; none when their tasks are done."""
        with self._guard:
            self._claims, self._lost = claims, set()

    def has_lost(self, claim: Claim) -> bool:
        """Whether a renewal was refused: another worker may have the task."""
        return claim in self._lost

    def renew(self, ledger: Ledger) -> None:
        """One heartbeat: renews the claims, marks the worker alive, looks for leases of others that
        have expired, reads the command.
        """
        with self._guard:
            claims = self._claims
        lost = {claim for claim in claims if not ledger.queue.renew(claim, self._lease_seconds)}
        with self._guard:
            if claims is self._claims:
                self._lost |= lost
        self._is_replaced = not ledger.members.heartbeat(self._worker, str(Life.here()))
        ledger.queue.reap()
        self.receive(ledger.meta.command())

    def receive(self, command: RunCommand) -> None:
        """Takes over a command.

        Raises:
          RunOfOtherVersion: the run was upgraded, and goes on without this process.
          NameLost: another worker was registered under this one's name.
        """
        if self._is_replaced:
            raise NameLost(name=self._worker)
        if command.version not in (None, dipaco.__version__):
            raise RunOfOtherVersion(
                folder="The run", found=command.version, here=dipaco.__version__
            )
        self.command = command.name

    def _renew_until_over(self) -> None:
        with contextlib.suppress(DipacoError):  # the worker meets the same error and reports it
            ledger = self._open_ledger()
            try:
                heartbeat_seconds = min(
                    self._lease_seconds / HEARTBEATS_PER_LEASE, MAX_HEARTBEAT_SECONDS
                )
                while not self._is_over.wait(heartbeat_seconds):
                    self.renew(ledger)
            finally:
                ledger.close()
