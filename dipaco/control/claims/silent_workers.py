"""Ends the claims of workers that have fallen silent, so that others may take up their tasks.

A worker is silent when its lease is over. One whose process ran on this machine, and has ended,
cannot renew it any more: its claims are ended after a second. Within that, its launcher, if it has
one, says how it ended, and gives them back.

A worker whose task hangs, in a file system or a device, renews its lease all the same. So it also
records for how long its task has made no progress. After ten leases another worker ends the claim.
A task may be slow where it counts no progress (a program that is compiled, a tokenizer that is
trained), so each loss of the task doubles that time.
"""

import time
from collections.abc import Hashable, Mapping
from typing import NamedTuple, TypeVar

from dipaco.control import clock
from dipaco.control.claims.failures import ENDED, SILENT, count_loss
from dipaco.control.claims.history import note_attempts, note_event
from dipaco.control.claims.queue import LEASE_SECONDS, reopen
from dipaco.control.database.contract import Database
from dipaco.control.database.retry import retried
from dipaco.control.process_id import ProcessId

Key = TypeVar("Key", bound=Hashable)


class Counter(NamedTuple):
    """A counter as it is now."""

    count: int
    limit_seconds: float  # after which it counts as silent


class Silence:
    """One process's observations of some counters."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, tuple[int, float]] = {}  # key -> count, silent seconds
        self._looked_seconds = clock.now_seconds()

    def look(self, counters: Mapping[Key, Counter]) -> dict[Key, float]:
        """Counter -> seconds for which this process has seen it stand still.

        At most half of its limit is counted between two looks: if nobody could look (the
        database was away, this machine slept), nobody could raise a counter either.

        Args:
          counters: all watched ones. A counter that is left out is forgotten.
        """
        now = clock.now_seconds()
        passed, self._looked_seconds = now - self._looked_seconds, now
        silent: dict[Key, float] = {}
        for key, (count, limit_seconds) in counters.items():
            before, seconds = self._seen.get(key, (None, 0.0))
            silent[key] = seconds + min(passed, limit_seconds / 2) if count == before else 0.0
        self._seen = {key: (counters[key].count, seconds) for key, seconds in silent.items()}
        return silent

    def over(self, counters: Mapping[Key, Counter]) -> list[Key]:
        """Looks, and returns the counters that have stood still for their limit, in their order."""
        silent = self.look(counters)
        return [key for key, counter in counters.items() if silent[key] >= counter.limit_seconds]


WATCHED = 32  # workers that each of them watches
ENDED_SECONDS = 1.0  # A launcher gives back its worker's claims in this time.
STALLED_LEASES, LEAST_STALLED_SECONDS = 10, 60.0  # Time without progress that ends a claim.
MOST_DOUBLINGS = 6


ClaimKey = tuple[int, int]  # number of the task, attempt


def stalled_limit(lease_seconds: float, losses: int = 0) -> float:
    """Time without progress that ends a claim of a task that was lost so often."""
    least = max(STALLED_LEASES * lease_seconds, LEAST_STALLED_SECONDS)
    return least * 2 ** min(losses, MOST_DOUBLINGS)


class _Look(NamedTuple):
    """Result of a look at all claims."""

    claims: dict[ClaimKey, Counter]
    holders: dict[ClaimKey, str]  # workers
    processes: dict[ClaimKey, ProcessId]  # Their processes on this machine.
    over: dict[ClaimKey, str]  # why


class Reaper:
    """One process's observations of the claims and workers of a run."""

    def __init__(self, database: Database):
        self._database = database
        self._claims_seen, self._workers_seen = Silence(), Silence()
        # Process of this machine that held claims at the last look -> when it was seen to have
        # ended.
        self._ended_seconds: dict[ProcessId, float | None] = {}

    @retried
    def reap(self, watcher: str | None = None) -> list[str]:
        """Looks once at all claims, and ends each that has stood still for its lease, whose process
        has ended, or whose task makes no progress. Returns the names of the workers that held them.
        Likewise, workers without a heartbeat for a lease count as silent. Takes no lock if there is
        nothing to end.

        To be called often: this process must itself have seen that a claim stands still, at least
        at three looks.

        Args:
          watcher: a worker, which looks at the `WATCHED` workers that follow it by name, and no
            more: if thousands looked at thousands, a server would do nothing else. Where all of
            these are dead, they are marked, and those behind them come next. Its own task, which
            may be slow, is left to others. None = at all.
        """
        self._mark_silent(self._silent_workers(watcher))
        claims, _, processes, over = self._look(watcher)
        if not over:
            return []
        workers: set[str] = set()
        for (task_id, attempt), reason in over.items():
            renewals, lease_seconds = claims[task_id, attempt]
            of = {"task_id": task_id, "attempt": attempt, "renewals": renewals}
            # One by one: a worker that is just finishing one of these may wait for another.
            with self._database.transaction():
                dropped = self._database.rows("drop_silent_claim", **of)
                self._note_lost(dropped, reason, lease_seconds)
                if dropped and reason == ENDED:
                    self._mark_ended(dropped[0][2], processes[task_id, attempt])
                reopen(self._database)
            workers |= {worker for _, _, worker, _ in dropped}
        return sorted(workers)

    def end_all(self) -> None:
        """Inside a transaction: ends every claim, though its worker may have renewed it since it
        was seen to be silent. Only for a run where nobody is `active`, and a worker that comes back
        is refused.
        """
        claims, _, processes, over = self._look()
        for row in self._database.rows("drop_all_claims"):
            key, worker = row[:2], row[2]
            lease_seconds = claims[key].limit_seconds if key in claims else LEASE_SECONDS
            self._note_lost([row], over.get(key, SILENT), lease_seconds)
            if over.get(key) == ENDED:
                self._mark_ended(worker, processes[key])
        reopen(self._database)

    @retried
    def active(self) -> list[str]:
        """The workers that are present or hold claims, without the workers that `reap` would
        end. Looks once as `reap` does, and ends nothing.
        """
        here = {name for (name, _) in self._database.rows("heard_workers")}
        silent, look = self._silent_workers(None), self._look()
        ended = {look.holders[key] for key, reason in look.over.items() if reason == ENDED}
        holders = {worker for key, worker in look.holders.items() if key not in look.over}
        return sorted((here - silent.keys() - ended) | holders)

    @retried
    def process_of_holder(self, worker: str) -> str | None:
        """The process of a worker, as it is written. None = it holds no claim."""
        row = self._database.one("process_of_holder", name=worker)
        return None if row is None else row[0]

    @retried
    def end_claims_of(self, worker: str, process_id: str) -> int:
        """Ends the claims of a worker whose process was seen to have ended, on whatever machine.

        Returns:
          How many it held; 0 as well if another process has its name by now.
        """
        with self._database.transaction():
            row = self._database.one("process_of_holder", name=worker)
            if row is None or row[0] != process_id:
                return 0
            dropped = self._database.rows("drop_claims_of_worker", worker=worker)
            self._note_lost(dropped, ENDED, LEASE_SECONDS)
            reopen(self._database)
        return len(dropped)

    def _note_lost(self, dropped: list[tuple], reason: str, lease_seconds: float) -> None:
        """Inside a transaction: claims that were dropped, as rows."""
        note_attempts(self._database, dropped, "lost", reason)
        for task_id, _, worker, _ in dropped:
            count_loss(self._database, task_id, worker, reason, lease_seconds)
            self._database.change("debit_worker", name=worker)

    @property
    def sees_some_here(self) -> bool:
        """True if a process of this machine held a claim at the last look."""
        return bool(self._ended_seconds)

    def has_seen_one_end(self) -> bool:
        """True if there are claims to end, of a process of this machine that held them at the last
        look and has ended. Asks no database; to be called often.
        """
        return bool(self._long_ended())

    def _long_ended(self) -> set[ProcessId]:
        """Processes of this machine that ended at least `ENDED_SECONDS` ago."""
        now = time.monotonic()
        for process, since in self._ended_seconds.items():
            if since is None and process.is_over():
                self._ended_seconds[process] = now
        return {
            process
            for process, since in self._ended_seconds.items()
            if since is not None and now - since >= ENDED_SECONDS
        }

    def _look(self, watcher: str | None = None) -> _Look:
        claims, holders, processes, here = {}, {}, {}, ProcessId.here()
        stalled: dict[ClaimKey, str] = {}
        for row in self._database.rows("live_claims"):
            task_id, attempt, worker, renewals, lease_seconds, still_seconds, losses, process = row
            if worker != watcher and still_seconds >= stalled_limit(lease_seconds, losses):
                stalled[task_id, attempt] = f"it made no progress for {still_seconds:.0f} s"
            claims[task_id, attempt] = Counter(renewals, lease_seconds)
            holders[task_id, attempt] = worker
            if process is not None and (known := here.neighbour(process)) is not None:
                processes[task_id, attempt] = known
        self._ended_seconds = {
            process: self._ended_seconds.get(process) for process in processes.values()
        }
        ended = self._long_ended()
        over = stalled | dict.fromkeys(self._claims_seen.over(claims), SILENT)
        over |= {claim: ENDED for claim, process in processes.items() if process in ended}
        return _Look(claims, holders, processes, over)

    def _silent_workers(self, watcher: str | None) -> dict[str, int]:
        """Looks once at workers that count as alive: those without a heartbeat for a lease, with
        their number of heartbeats.
        """
        if watcher is None:
            rows = self._database.rows("heard_workers")
        else:
            rows = self._database.rows("heard_after", name=watcher, limit=WATCHED)
        workers = {name: Counter(heartbeats, LEASE_SECONDS) for name, heartbeats in rows}
        silent = self._workers_seen.over(workers)
        return {name: workers[name].count for name in silent}

    def _mark_ended(self, worker: str, process_id: ProcessId) -> None:
        """Inside a transaction."""
        if self._database.change("mark_ended", name=worker, process_id=str(process_id)):
            note_event(self._database, "silent", worker)

    def _mark_silent(self, workers: dict[str, int]) -> None:
        if workers:
            with self._database.transaction(is_durable=False):
                for name, heartbeats in sorted(workers.items()):  # Others mark some of them too.
                    if self._database.change("mark_silent", name=name, heartbeats=heartbeats):
                        note_event(self._database, "silent", name)
