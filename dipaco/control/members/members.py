"""Members: which workers take part in a run, and how much of their time counted."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from dipaco.control.claims.history import note_event
from dipaco.control.claims.queue import LEASE_SECONDS
from dipaco.control.database.contract import Database
from dipaco.control.database.retry import retried
from dipaco.control.process_id import ProcessId


class Member(NamedTuple):
    """One worker, as the ledger knows it."""

    name: str
    host: str
    pid: int
    machine: str  # The bits of its results depend on it.
    state: str  # here, left, lost
    silent_seconds: float  # since its last heartbeat, by the database's clock: to be shown only
    live_seconds: float  # Time from joining to the last heartbeat, summed over its stays.
    committed_seconds: float  # The part of it spent in tasks that were recorded.
    committed_tasks: int
    lost_tasks: int  # leases that it lost
    epoch: str  # Names the clock that counts these seconds.
    joined: float  # on that clock
    heartbeats: int  # a counter: whether a worker is alive is seen by its growing
    is_silent: bool  # a process that ends leases has seen no heartbeat for `LEASE_SECONDS`
    process_id: str  # its process, told from any other's on any machine
    kinds: tuple[str, ...]  # Kinds of task that it does. Empty = not recorded.
    last_words: str  # why it ended, if not in order

    @property
    def presence(self) -> str:
        """here, left, lost; or silent: it may have been preempted with its machine, and never says
        that it leaves.
        """
        return "silent" if self.state == "here" and self.is_silent else self.state

    @property
    def participation(self) -> float:
        """The share of its time that went into tasks that were recorded."""
        return min(1.0, self.committed_seconds / max(self.live_seconds, 1e-9))


class Members:
    """The workers of one run."""

    def __init__(self, database: Database):
        self._database = database

    @property
    def epoch(self) -> str:
        """Names the clock as it is now."""
        return self._database.epoch

    @retried
    def join(
        self,
        name: str,
        *,
        host: str,
        pid: int,
        process_id: str,
        machine: str,
        version: str,
        kinds: Collection[str] = (),
        after: Member | None = None,
    ) -> bool:
        """Registers a worker.

        Args:
          process_id: unique among all processes of all machines.
          after: the member of this name whose place it takes, if there is one.

        Returns:
          False: another worker took the name first.
        """
        with self._database.transaction(is_durable=False):
            changed = self._database.change(
                "put_worker",
                name=name,
                host=host,
                pid=pid,
                process_id=process_id,
                machine=machine,
                version=version,
                epoch=self._database.epoch,
                after=None if after is None else after.process_id,
                kinds=",".join(kinds),
            )
            if changed:
                note_event(self._database, "joined", name)
            return bool(changed)

    @retried
    def heartbeat(self, name: str, process_id: str) -> bool:
        """Records that a worker is alive. False if another was registered under its name."""
        with self._database.transaction(is_durable=False):
            return bool(self._database.change("heartbeat", name=name, process_id=process_id))

    @retried
    def leave(self, name: str, process_id: str, last_words: str = "") -> None:
        """Records that a worker has left, and why if not in order. Does nothing if another was
        registered under its name.
        """
        with self._database.transaction(is_durable=False):
            of = {"name": name, "process_id": process_id, "last_words": last_words}
            if self._database.change("leave", **of):
                note_event(self._database, "left", name, last_words)

    @retried
    def list(self) -> list[Member]:
        """All workers that ever took part, by name."""
        return [
            Member(
                *row, bool(is_silent), process_id, tuple(kinds.split(",")) if kinds else (), words
            )
            for *row, is_silent, process_id, kinds, words in self._database.rows(
                "list_workers", epoch=self._database.epoch
            )
        ]

    def as_seen_here(self) -> Sequence[Member]:
        """All workers that ever took part, by name, as far as this machine can tell.

        A worker that was killed could not say that it leaves. If its process was one of this
        machine and has ended, it is `lost` at once. If all workers died together, none was left to
        see the others fall silent: here a worker without a heartbeat for a lease is silent.
        """
        return [_as_seen_here(member) for member in self.list()]

    def here(self) -> Sequence[Member]:
        """Those that take part now, by name."""
        return [member for member in self.list() if member.presence == "here"]


def _as_seen_here(member: Member) -> Member:
    if member.state != "here":
        return member
    if ProcessId.parse(member.process_id).is_over():
        return member._replace(state="lost")
    is_silent = member.is_silent or member.silent_seconds > LEASE_SECONDS
    return member._replace(is_silent=is_silent)
