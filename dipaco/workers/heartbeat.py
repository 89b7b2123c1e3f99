"""The heart of a worker: a thread that renews its leases and hears what the run orders.

It has a connection of its own, and goes on while a task computes. When the process dies or is
stopped, so does it; then the leases end, and others take the tasks over.
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

HEARTBEATS_PER_LEASE = 4
MAX_HEARTBEAT_SECONDS = (
    LEASE_SECONDS / HEARTBEATS_PER_LEASE
)  # who has longer leases is heard of as often


class LeaseRenewer:
    """Beats for one worker until it is left.

    Args:
      open_ledger: a connection for the thread.
      worker: its name in the roster.
      lease_seconds: how long it may be silent.
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
        self.command = "run"  # what everybody who works on the run should do

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._is_over.set()
        self._thread.join(timeout=self._lease_seconds)

    def hold(self, *claims: Claim) -> None:
        """The claims to renew from now on; none, when their tasks are done."""
        with self._guard:
            self._claims, self._lost = claims, set()

    def has_lost(self, claim: Claim) -> bool:
        """Whether a renewal was refused: somebody else may have the task by now."""
        return claim in self._lost

    def renew(self, ledger: Ledger) -> None:
        """Once; the thread does nothing else."""
        with self._guard:
            claims = self._claims
        lost = {claim for claim in claims if not ledger.queue.renew(claim, self._lease_seconds)}
        with self._guard:
            if claims is self._claims:
                self._lost |= lost
        ledger.members.heartbeat(self._worker)
        self.receive(ledger.meta.command())

    def receive(self, command: RunCommand) -> None:
        """Raises `RunOfOtherVersion`: the run was upgraded, and goes on without this process."""
        if command.version not in (None, dipaco.__version__):
            raise RunOfOtherVersion(
                folder="The run", found=command.version, here=dipaco.__version__
            )
        self.command = command.name

    def _renew_until_over(self) -> None:
        with contextlib.suppress(DipacoError):  # the worker will meet it as well, and say it
            ledger = self._open_ledger()
            try:
                heartbeat_seconds = min(
                    self._lease_seconds / HEARTBEATS_PER_LEASE, MAX_HEARTBEAT_SECONDS
                )
                while not self._is_over.wait(heartbeat_seconds):
                    self.renew(ledger)
            finally:
                ledger.close()
