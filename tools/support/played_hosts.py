"""Workers of several hosts, played in turn by one program: what may happen to a fleet, drawn by
dice. They are the workers of `workers/loop.py`, which claim, recover, collect and go back as ever.

Nothing waits: where all workers of the program are idle, its clock moves on. Several programs may
play on one ledger, each in a thread, with hosts and a clock of its own.
"""

import contextlib
import dataclasses
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

from dipaco.control import clock
from dipaco.control.errors import NotAvailable
from dipaco.control.facts.redos import MOST_REDOS
from dipaco.control.planning.tasks import Claim, Fact, Task
from dipaco.control.process_id import ProcessId
from dipaco.errors import MachineFault, WorkersActive
from dipaco.runs.machine import machine as real_machine
from dipaco.runs.run import Run
from dipaco.store import objects
from dipaco.workers import claiming, rollback
from dipaco.workers.callbacks import Callbacks
from dipaco.workers.errors import CannotRollBack
from dipaco.workers.heartbeat import LeaseRenewer
from dipaco.workers.keeping import clean_up
from dipaco.workers.loop import Worker

LEASE_SECONDS = 60.0
HUNG_SECONDS = 1e6  # without progress: more than any task is given
LATE_SECONDS = 1e4  # for which a late task is held: more than any path's phase takes
MOST_MOVES = 20_000  # a run has some hundred tasks
MOST_IDLE = 60  # moves in a row, with some leases between them
MOST_TROUBLES = 6  # of each in a run, so that it gets on
MOVE_SECONDS, MOVES_PER_HEARTBEAT = 0.5, 30
# What may become of a claim, and of how many of a hundred. The task of the others is finished.
ENDS = {"given back": 3, "saved": 5, "killed": 3, "hung": 4, "late": 3, "lost object": 3}
# What may happen to hosts and the run, in how many of a thousand moves.
TROUBLES = {"suspended": 6, "lost host": 5, "gone back": 4, "opened alone": 2}


class Wrong(Exception):
    """A run did what no run may do."""


class Fleet(NamedTuple):
    """The hosts of one run."""

    kinds: tuple[str, ...]  # of the machine of each host
    has_bucket: bool  # It is all that they share. Otherwise they share a folder.
    troubles: frozenset[str]  # those of `ENDS` and `TROUBLES` that happen

    @classmethod
    def drawn(cls, dice: random.Random) -> "Fleet":
        kinds = dice.choice([("a",), ("a", "a"), ("a", "a", "a"), ("a", "b"), ("a", "b", "a", "b")])
        odds = dice.choice([0.3, 0.7])
        troubles = frozenset(each for each in (*ENDS, *TROUBLES) if dice.random() < odds)
        return cls(kinds, len(kinds) > 1 and dice.random() < 0.7, troubles)

    @property
    def is_lossless(self) -> bool:
        """True if no object is ever lost."""
        return not self.troubles & {"lost object", "lost host"}

    def __str__(self) -> str:
        where = "a bucket" if self.has_bucket else "one folder"
        return f"{where} for {'+'.join(self.kinds)}: {', '.join(sorted(self.troubles))}"


@dataclasses.dataclass(eq=False)
class Player:
    """A worker, and what it is at."""

    name: str
    host: "Host"
    process: ProcessId
    worker: Worker
    claim: Claim | None = None
    is_stopped: bool = False  # it hangs, or its host is suspended
    has_heartbeat: bool = True  # a worker that hangs has one


@dataclasses.dataclass(eq=False)
class Host:
    """A machine."""

    name: str
    kind: str
    run: Run
    lose: Callable[[], None]  # its disk


class _Now(threading.local):
    """What the code that is being played takes for its process, machine and clock."""

    player: Player | None = None
    seconds = 0.0  # No other program's clock.


_NOW = _Now()
_ENDED: set[str] = set()  # processes
_REAL_HERE, _REAL_OVER, _REAL_SECONDS = ProcessId.here, ProcessId.is_over, clock.now_seconds


@contextlib.contextmanager
def played() -> Generator[None]:
    """Processes, machines and the clock are those of who is played."""

    def here(_: type) -> ProcessId:
        return _REAL_HERE() if _NOW.player is None else _NOW.player.process

    def is_over(process: ProcessId) -> bool:
        return _REAL_OVER(process) if _NOW.player is None else str(process) in _ENDED

    def kind() -> str:
        return real_machine() if _NOW.player is None else _NOW.player.host.kind

    def seconds() -> float:
        return _NOW.seconds or _REAL_SECONDS()

    patched: list[tuple[Any, str, Any]] = [
        (ProcessId, "here", classmethod(here)),
        (ProcessId, "is_over", is_over),
        (clock, "now_seconds", seconds),
        (claiming, "time", SimpleNamespace(monotonic=seconds)),
        (objects, "MISSED_SECONDS", 0.0),
        (objects, "FIRST_LOOK_SECONDS", 0.001),
    ]
    patched += [
        (module, "machine", kind)
        for name, module in sys.modules.items()
        if name.startswith("dipaco.") and getattr(module, "machine", None) is real_machine
    ]
    before = [(owner, name, vars(owner)[name]) for owner, name, _ in patched]
    _ENDED.clear()  # The next run's processes have the same names.
    for owner, name, value in patched:
        setattr(owner, name, value)
    try:
        yield
    finally:
        _NOW.seconds = 0.0
        for owner, name, value in before:
            setattr(owner, name, value)


class Play(Callbacks):
    """The workers of one program.

    Args:
      new_run: opens the run on a new host of this name: (run, loses its disk).
      lose_object: loses an object that a task reads. False: it reads none.
      check: is called with every task that is claimed. Raises `Wrong`.
      prefix: of the names of hosts and workers.
      is_alone: there is no other program, so a run may go back.
    """

    def __init__(
        self,
        fleet: Fleet,
        new_run: Callable[[str], tuple[Run, Callable[[], None]]],
        dice: random.Random,
        *,
        lose_object: Callable[[Task], bool],
        check: Callable[[Task], None] = lambda _: None,
        prefix: str = "",
        workers: int = 6,
        is_alone: bool = True,
    ):
        self._fleet, self._new_run, self._dice, self._check = fleet, new_run, dice, check
        self._lose_object, self._is_alone, self._prefix = lose_object, is_alone, prefix
        self._number = 0  # of hosts and workers so far
        self._lost: set[tuple[int, int]] = set()  # (number of the task, attempt)
        self._losses: Counter[Task] = Counter()  # objects that each task was to read
        self._depth = 0  # turns within a turn
        self._most_players = workers + len(fleet.kinds)
        _NOW.seconds = 1e6
        random.seed(dice.random())  # of waits
        self.counts = dict.fromkeys((*ENDS, *TROUBLES, "in between", "retried"), 0)
        self.players: list[Player] = []
        hosts = [self._new_host(kind) for kind in fleet.kinds]
        for number in range(workers):
            self._begin(hosts[number % len(hosts)])

    def until(self, is_over: Callable[[], bool]) -> None:
        """Plays until that is so. Raises `Wrong`."""
        idle = 0
        for number in range(MOST_MOVES):
            if is_over():
                return
            _NOW.seconds += MOVE_SECONDS
            if number % MOVES_PER_HEARTBEAT == 0:
                self._heartbeats()
            player = self._dice.choice(self._awake())
            if player.claim is None and self._is_one_too_many(player):
                self._leave(player)
                continue
            if self._turn(player):
                idle = 0
            elif not any(each.claim for each in self._awake()):
                idle += 1
                self._idle(idle)
            self._trouble()
        raise Wrong(f"no end: {self._left()}")

    @property
    def run(self) -> Run:
        return self.players[0].host.run

    def _left(self) -> str:
        left = self.run.ledger.queue.unfinished()
        reasons = {f"{each.task}: {each.reason}" for each in self.run.ledger.failures.list()}
        return ", ".join([*(f"{each.task} is {each.state}" for each in left[:12]), *reasons])

    def _awake(self) -> list[Player]:
        return [player for player in self.players if not player.is_stopped]

    # Hosts and workers come.

    def _new_host(self, kind: str) -> Host:
        self._number += 1
        name = f"{self._prefix}h{self._number}"
        return Host(name, kind, *self._new_run(name))

    def _begin(self, host: Host) -> None:
        self._number += 1
        name, run = f"{self._prefix}w{self._number}", host.run
        process = ProcessId(f"boot-of-{host.name}", "pid", self._number, "0")
        renewer = LeaseRenewer(run.open_ledger, name, LEASE_SECONDS)  # not started
        player = Player(name, host, process, Worker(run, name, self, renewer))
        # One that waits for modules leaves at once: no other thread would bring them.
        player.worker._make_should_leave = lambda should_stop: lambda: True
        self.players.append(player)
        with self._as(player):
            run.ledger.members.join(
                name,
                host=host.name,
                pid=self._number,
                process_id=str(process),
                machine=host.kind,
                version="0",
            )

    @contextlib.contextmanager
    def _as(self, player: Player) -> Generator[None]:
        retention = player.host.run.ledger.retention
        before, key = _NOW.player, retention._deleting
        # Each process has a ledger of its own, and says of itself alone that it deletes.
        _NOW.player, retention._deleting = player, f"deleting {player.name}"
        try:
            yield
        finally:
            _NOW.player, retention._deleting = before, key

    # Turns.

    def _turn(self, player: Player) -> bool:
        """True if the worker has done something."""
        with self._as(player):
            if player.claim is None:
                player.claim = player.worker._claimer.claim(None)
                if player.claim is not None and self._holds(player.claim):
                    self._check(player.claim.task)
                return player.claim is not None
            claim, player.claim = player.claim, None
            self._go_on(player, claim)
        return True

    def _holds(self, claim: Claim) -> bool:
        return self.run.ledger.queue.is_held(claim)

    def _go_on(self, player: Player, claim: Claim) -> None:
        """The worker ends with its claim, in one way or another."""
        chance, queue = self._dice.random() * 100, self.run.ledger.queue
        how = "finished"
        for each, share in ENDS.items():
            if each in self._fleet.troubles and chance < share:
                how = each
                break
            chance -= share
        if how == "lost object":
            # Each may have a run train again from its start. More for one task need a person.
            self._losses[claim.task] += 1
            if self.counts[how] >= MOST_TROUBLES or self._losses[claim.task] > MOST_REDOS:
                how = "finished"
        if how in self.counts:
            self.counts[how] += 1
        if how == "given back":
            queue.give_back(claim)
        elif how == "killed":
            self._kill(player, [claim])
        elif how == "hung":
            kind = f"hung {claim.task.kind}"
            self.counts[kind] = self.counts.get(kind, 0) + 1
            self._hang(player, claim)
        elif how == "late":
            queue.renew(claim._replace(since=claim.since - LATE_SECONDS), LEASE_SECONDS)
            player.claim = claim
            self._make_due()
        else:
            if how == "saved":
                player.worker.stop()
            elif how == "lost object":
                self._lose_object(claim.task)
            self._do(player, claim)
            player.worker._stop_is_requested = False

    def _do(self, player: Player, claim: Claim) -> None:
        player.worker._renewer.hold(claim)
        try:
            player.worker._do(claim)
        except MachineFault:  # many tasks in a row failed here
            self.run.ledger.queue.give_back(claim)
            self._kill(player, [])
        finally:
            player.worker._renewer.hold(None)

    def task_finished(self, claim: Claim, facts: list[Fact]) -> None:
        if (claim.task_id, claim.attempt) in self._lost:
            raise Wrong(f"{claim.task} was finished under a lost claim")

    # Workers and hosts go.

    def _kill(self, player: Player, claims: Sequence[Claim]) -> None:
        """Its process ends. Its launcher says so, or others see it, and another one begins."""
        ledger = self.run.ledger
        _ENDED.add(str(player.process))
        self._lose(claims)
        self.players.remove(player)
        if self._dice.random() < 0.5:
            crash = self._dice.choice(["", "killed by signal 9"])
            ledger.queue.give_back_of(player.name, crash=crash)
        self._begin(player.host)

    def _is_one_too_many(self, player: Player) -> bool:
        awake = [each.host for each in self._awake()]
        return len(awake) > self._most_players and awake.count(player.host) > 1

    def _leave(self, player: Player) -> None:
        self.run.ledger.members.leave(player.name, str(player.process))
        self.players.remove(player)

    def _lose(self, claims: Iterable[Claim]) -> None:
        self._lost |= {(claim.task_id, claim.attempt) for claim in claims}

    def _hang(self, player: Player, claim: Claim) -> None:
        """It lives, and renews its lease. Others end its claim, and later it goes on."""
        ledger, others = self.run.ledger, [each for each in self._awake() if each is not player]
        player.is_stopped, player.claim = True, claim
        self._begin(player.host)
        if ledger.queue.renew(claim, LEASE_SECONDS, HUNG_SECONDS):
            with self._as(self._dice.choice(others or self.players[-1:])):
                ledger.reaper.reap("another")
            if self._holds(claim):
                raise Wrong(f"nobody ends the claim of a worker that hangs in {claim.task}")
            self._lose([claim])

    def _suspend(self, host: Host) -> None:
        """All workers of a host stand still, until others have ended their claims."""
        stopped = [each for each in self._awake() if each.host is host]
        if len(stopped) == len(self._awake()):
            return
        for player in stopped:
            player.is_stopped, player.has_heartbeat = True, False
        self._pass_time()
        held = [each.claim for each in stopped if each.claim is not None]
        if self._is_alone and any(map(self._holds, held)):
            raise Wrong(f"nobody ends the claims of {host.name}, which is suspended")
        self._lose(claim for claim in held if not self._holds(claim))

    def _wake(self) -> None:
        """One worker that hung goes on, or those of a host that was suspended."""
        stopped = [player for player in self.players if player.is_stopped]
        if stopped:
            first = self._dice.choice(stopped)
            host = None if first.has_heartbeat else first.host
            for player in stopped:
                if player is first or player.host is host:
                    player.is_stopped, player.has_heartbeat = False, True
                    self._heartbeat(player)

    def _lose_host(self, host: Host) -> None:
        """Its disk and its workers are gone. Another one of its kind comes."""
        gone = [player for player in self.players if player.host is host]
        host.lose()
        self._lose(player.claim for player in gone if player.claim is not None)
        self.players = [player for player in self.players if player.host is not host]
        new = self._new_host(host.kind)
        for _ in gone:
            self._begin(new)
        self._pass_time()

    def _trouble(self) -> None:
        chance = self._dice.random() * 1000
        if self._dice.random() < 0.02:
            self._wake()
        host = self._dice.choice(self.players).host
        for each, share in TROUBLES.items():
            if each in self._fleet.troubles and chance < share:
                if self.counts[each] >= MOST_TROUBLES:
                    return
                self.counts[each] += 1
                if each == "suspended":
                    self._suspend(host)
                elif each == "lost host" and self._fleet.has_bucket:
                    self._lose_host(host)
                elif each == "gone back" and self._is_alone:
                    self._stop_all()
                    self._go_back()
                elif each == "opened alone" and self._is_alone and not self._fleet.has_bucket:
                    self._stop_all()
                    with self._as(self.players[0]):
                        clean_up(self.run, is_first=True)
                return
            chance -= share

    def _stop_all(self) -> None:
        """Every worker of the run ends, and others begin."""
        for player in list(self.players):
            _ENDED.add(str(player.process))
            self._lose([player.claim] if player.claim else [])
            self.players.remove(player)
            self._begin(player.host)
        self.run.ledger.queue.give_back_all()

    def _go_back(self) -> None:
        run, player = self.run, self._dice.choice(self._awake())
        if run.phases_reached >= 0:
            with self._as(player), contextlib.suppress(CannotRollBack, WorkersActive, NotAvailable):
                rollback.roll_back(player.host.run, self._dice.randint(0, run.phases_reached))

    def in_between(self) -> None:
        """To be called between two deletions, and between two reads of a run that goes back: now
        and then other workers have a turn, or the run is to go back.
        """
        if self._depth or self._dice.random() > 0.05 or _NOW.player is None:
            return
        self.counts["in between"] += 1
        self._depth, player = 1, _NOW.player
        others = [each for each in self._awake() if each is not player]
        try:
            for _ in range(self._dice.randint(1, 6)):
                if others:
                    self._turn_in_between(self._dice.choice(others))
            if "gone back" in self._fleet.troubles and self._is_alone:
                self._go_back()
        finally:
            self._depth = 0

    def _turn_in_between(self, player: Player) -> None:
        if player in self.players and not player.is_stopped:
            self._turn(player)

    # Time passes.

    def _idle(self, idle: int) -> None:
        """Nothing is claimable, and no worker of this program that is awake holds anything."""
        ledger = self.run.ledger
        self._pass_time()
        self._make_due(idle_seconds=1e9 if idle > 2 else 0.0)
        ledger.quorums.end_grace(self.run.plan)
        for failure in ledger.failures.list():
            for player in self.players:
                if failure.task in player.worker._failures._lasting:
                    raise player.worker._failures._lasting[failure.task]
            if failure.state == "delayed" or idle > 6:
                self.counts["retried"] += failure.state == "failed"
                ledger.failures.retry(failure.task)
        if idle > 1:
            self._wake()
        if idle > 3:
            time.sleep(0.002)
        if idle > (MOST_IDLE if self._is_alone else 5000):
            raise Wrong(f"nobody can do what is left: {self._left()}")

    def _make_due(self, idle_seconds: float = 0.0) -> None:
        """Those who look now and then look at their next turn."""
        for player in self.players:
            claimer = player.worker._claimer
            claimer._overdue_tasks.make_due()
            claimer._idle_since -= idle_seconds

    def _pass_time(self) -> None:
        """Those who are awake renew, look and see that others do not."""
        for _ in range(5):
            _NOW.seconds += LEASE_SECONDS / 2
            self._heartbeats()
            for player in self._awake()[:2]:
                with self._as(player):
                    player.host.run.ledger.reaper.reap(player.name)

    def _heartbeats(self) -> None:
        for player in self.players:
            if player.has_heartbeat:
                self._heartbeat(player)

    def _heartbeat(self, player: Player) -> None:
        ledger = player.host.run.ledger
        ledger.members.heartbeat(player.name, str(player.process))
        if player.claim is not None:
            ledger.queue.renew(player.claim, LEASE_SECONDS)
