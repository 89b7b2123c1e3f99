"""Measures the cost of scheduling a run of 256 paths on a virtual clock, with the real ledger,
queue and scheduler.

    python tools/bench_schedule.py                                      100 phases: some minutes
    python tools/bench_schedule.py --phases 3 --preempt-every 1800 --killed-share 0.02

The paper's 16x16 with private parts: 256 paths, 289 modules. Nothing is trained: a path's phase
takes 120 s of the virtual clock, 5 % more or less, an outer step 2 s. 512 workers claim, renew and
finish tasks in a ledger on SQLite (with `--database` on PostgreSQL), and are preempted: each is
asked to leave once in `--preempt-every` seconds on average, hands its phase on part-way, and is
back after a minute. The worker that takes the phase over needs `--resume-seconds` to load it.
`--killed-share` of them are killed without warning: their leases must end first, and their phases
are done again from the beginning.

`overhead` is how much longer the phases took than in the ideal schedule: the longest chain of the
same phases and outer steps, with no preemption and no time between them. One module is shared by
all paths, so every phase waits for its last path. `scheduler CPU` is this process's time in claim,
renew and finish, by task.

Workers ask whatever else they ask in a run, as often: work summaries and looks for overdue tasks of
idle workers, and heartbeats of all, with their looks for silent workers. `milliseconds_per_call`
and `core_share`, the part of one core that a question keeps busy, are of this process.
The last line is one JSON object.
"""

import argparse
import collections
import contextlib
import dataclasses
import heapq
import itertools
import json
import random
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from support import made_up_facts
from support.command_line import parser_of
from support.scratch import scratch
from support.servers import server_at

from dipaco.control import clock
from dipaco.control.claims.queue import ALL_KINDS
from dipaco.control.facts.facts import PartialSnapshot
from dipaco.control.ledger import open_ledger
from dipaco.control.planning.tasks import Claim, Fact, PathTrained, Task
from dipaco.errors import ClaimLost
from dipaco.receipt import Receipt
from dipaco.schedule.arm import Arm
from dipaco.schedule.plan import BASE, Plan, one_path
from dipaco.topology import PER_PATH, Level, Topology
from dipaco.workers.loop import LEAST_SHARE, MAX_WAIT_SECONDS, MIN_WAIT_SECONDS, WAIT_GROWTH

MODULAR = "modular"
KINDS = ("prepare", "pretrain", "route", "train", "outer")  # nothing is evaluated
OUTER_SECONDS = 2.0
SPREAD = 0.05  # Relative spread of the durations of phases.
AWAY_SECONDS = 60.0  # Absence of a preempted worker.
BEATS_PER_LEASE = 4
OF_TASKS = ("claim", "renew", "finish", "snapshot")


def main() -> None:
    options = parse()
    with server_at(options.database) as url, scratch(options.folder, "schedule-") as folder:
        place = (url, f"bench_{uuid.uuid4().hex[:12]}") if url else (folder / "ledger.sqlite", "")
        answer = Simulation(options, place).run()
    for name, value in answer.items():
        if not isinstance(value, dict):
            print(f"{name.replace('_', ' '):28} {value:,}")
    print(f"\n{'call':16} {'times':>10} {'ms':>8} {'of a core':>10}")
    for name, times in answer["calls"].items():
        of_core = answer["core_share"][name]
        print(f"{name:16} {times:10,} {answer['milliseconds_per_call'][name]:8.3f} {of_core:10.2%}")
    print(json.dumps(answer))


def parse() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--phases", type=int, default=100)
    parser.add_argument("--grid", type=int, default=16, help="16 = 16x16 = 256 paths")
    parser.add_argument("--workers", type=int, default=512)
    parser.add_argument("--phase-seconds", type=float, default=120.0, help="virtual")
    parser.add_argument("--preempt-every", type=float, default=3600.0, help="virtual, a worker")
    parser.add_argument("--killed-share", type=float, default=0.0, help="of the preempted")
    parser.add_argument("--resume-seconds", type=float, default=5.0, help="virtual")
    parser.add_argument("--lease-seconds", type=float, default=60.0, help="virtual")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--database", help="postgresql = one started here; postgresql://...")
    parser.add_argument("--folder", help="of SQLite's ledger")
    return parser.parse_args()


def make_plan(grid: int, phases: int) -> Plan:
    """Grid times grid paths, with parts of their own, and one module that all share."""
    topology = Topology(
        levels=(
            Level(name="own", parts=("embed",), experts=PER_PATH),
            Level(name="early", parts=("block_00",), experts=grid),
            Level(name="late", parts=("block_01",), experts=grid),
            Level(name="stem", parts=("head",)),
        )
    )

    def arm(name: str, topology: Topology, phases: int, *, has_outer_steps: bool) -> Arm:
        return Arm(
            name=name, topology=topology, phases=phases, total_steps=phases * 100,
            has_outer_steps=has_outer_steps, evaluate_every=phases,
        )  # fmt: skip

    base = arm(BASE, one_path(("embed", "block_00", "block_01", "head")), 1, has_outer_steps=False)
    return Plan(base=base, arms=(arm(MODULAR, topology, phases, has_outer_steps=True),))


class Simulation:
    """Events in order, on a virtual clock that the ledger uses as well."""

    def __init__(self, options: argparse.Namespace, place: tuple[Path | str, str]):
        self._options, self._place = options, place
        self.plan = make_plan(options.grid, options.phases)
        self._topology = self.plan.arm(MODULAR).topology
        self._rng = random.Random(options.seed)
        self._now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._idle = [f"worker {n}" for n in range(options.workers)]
        self._running: set[Claim] = set()
        self._cpu_seconds: dict[str, float] = collections.defaultdict(float)
        self._calls: collections.Counter[str] = collections.Counter()
        self._away: set[str] = set()
        self._idle_since: dict[str, int] = {}  # worker -> the number of its spell of idleness
        self._began_seconds: float | None = None  # the first phase
        self._ended_seconds = 0.0
        self.counts = dict.fromkeys(("finished", "preempted", "killed", "renewed", "lost"), 0)

    def run(self) -> dict[str, Any]:
        began = time.monotonic()
        with (
            mock.patch.object(clock, "now_seconds", self._now_seconds),
            open_ledger(*self._place) as self._ledger,
        ):
            self._ledger.start({"config": "{}"})
            self._arrive()
            self._hand_out()
            while self._events and not self._is_over():
                self._now, _, happen = heapq.heappop(self._events)
                happen()
            assert self._is_over(), "it stands still"
            self._check()
        assert self._began_seconds is not None
        virtual = self._ended_seconds - self._began_seconds
        ideal = self.ideal_seconds()
        tasks = self.counts["finished"]
        return {
            "paths": self._topology.num_paths,
            "modules": len(self._topology.modules),
            "phases": self._options.phases,
            "workers": self._options.workers,
            "tasks": tasks,
            **{name: self.counts[name] for name in ("preempted", "killed", "lost", "renewed")},
            "virtual_seconds": round(virtual, 1),
            "ideal_seconds": round(ideal, 1),
            "overhead": round(virtual / ideal - 1, 4),
            "scheduler_cpu_ms_per_task": round(
                1e3 * sum(self._cpu_seconds[name] for name in OF_TASKS) / tasks, 3
            ),
            "wall_seconds": round(time.monotonic() - began, 1),
            "calls": dict(self._calls),
            "milliseconds_per_call": {
                name: round(1e3 * self._cpu_seconds[name] / times, 3)
                for name, times in self._calls.items()
            },
            "core_share": self._shares(self._cpu_seconds, virtual),
        }

    def _shares(self, seconds: dict[str, float], virtual: float) -> dict[str, float]:
        of_each = {name: round(of / virtual, 5) for name, of in seconds.items()}
        return of_each | {"all": round(sum(seconds.values()) / virtual, 5)}

    def _now_seconds(self) -> float:
        return self._now

    def ideal_seconds(self) -> float:
        """The longest chain of phases and outer steps, one following the other at once."""
        ready = dict.fromkeys(self._topology.modules, 0.0)
        for phase in range(self._options.phases):
            ended = {
                path: max(ready[m] for m in self._topology.modules_of(path))
                + self._phase_seconds(path, phase)
                for path in range(self._topology.num_paths)
            }
            ready = {
                m: max(ended[path] for path in self._topology.paths_through(m)) + OUTER_SECONDS
                for m in self._topology.modules
            }
        return max(ready.values())

    def _phase_seconds(self, path: int, phase: int) -> float:
        rng = random.Random(f"{self._options.seed} {path} {phase}")
        return self._options.phase_seconds * rng.uniform(1 - SPREAD, 1 + SPREAD)

    def _is_over(self) -> bool:
        """The last outer step of the last phase is recorded."""
        return self.counts.get("last_modules", 0) == len(self._topology.modules)

    def _check(self) -> None:
        """Every path went through every phase, once."""
        expected = self._options.phases * 2
        losses = self._ledger.progress.losses(MODULAR)
        assert {path: len(values) for path, values in losses.items()} == dict.fromkeys(
            range(self._topology.num_paths), expected
        )

    # --- what happens -------------------------------------------------------------------------

    def _at(self, seconds: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (seconds, next(self._numbers), happen))

    def _asked(self, what: str, ask: Callable[[], Any]) -> Any:
        """Asks the ledger something, and adds up the processor time."""
        began = time.process_time()
        try:
            return ask()
        finally:
            self._cpu_seconds[what] += time.process_time() - began
            self._calls[what] += 1

    # --- repeated questions -------------------------------------------------------------------

    def _arrive(self) -> None:
        """Everybody registers, and begins to ask."""
        for worker in self._idle:
            self._join(worker)
            self._at(self._rng.uniform(0, self._beat_seconds), lambda w=worker: self._look_out(w))
            self._begin_idling(worker)

    def _join(self, worker: str) -> None:
        self._ledger.members.join(
            worker, host="host", pid=1, process_id=worker, machine="virtual", version="0"
        )

    @property
    def _beat_seconds(self) -> float:
        return self._options.lease_seconds / BEATS_PER_LEASE

    def _look_out(self, worker: str) -> None:
        """The heartbeat of an idle or busy worker, followed by its look for silent workers."""

        def beat() -> None:
            self._ledger.members.heartbeat(worker, worker)
            self._ledger.meta.command()

        if worker not in self._away:
            self._asked("heartbeat", beat)
            lost = self._asked("silent workers", lambda: self._ledger.reaper.reap(worker))
            self.counts["lost"] += len(lost)
            if lost:
                self._hand_out()
        self._at(self._now + self._beat_seconds, lambda: self._look_out(worker))

    def _begin_idling(self, worker: str) -> None:
        """It looks at once, and then after a fifth of the time that it has been idle."""
        spell = self._idle_since[worker] = next(self._numbers)
        self._look(worker, spell, MIN_WAIT_SECONDS, self._now)

    def _look(self, worker: str, spell: int, wait: float, looked_for_overdue: float) -> None:
        if self._idle_since.get(worker) != spell:
            return  # it has a task, or is away
        self._asked("work_summary", lambda: self._ledger.meta.work_summary(ALL_KINDS))
        if self._now - looked_for_overdue >= self._options.lease_seconds:
            looked_for_overdue = self._now
            late = self._asked("overdue tasks", lambda: self._ledger.queue.claim_backup(worker))
            if late is not None:
                self._take(worker, late)
                return
        share = self._rng.uniform(LEAST_SHARE, 1)
        self._at(
            self._now + wait * share,
            lambda: self._look(
                worker, spell, min(wait * WAIT_GROWTH, MAX_WAIT_SECONDS), looked_for_overdue
            ),
        )

    # --- tasks --------------------------------------------------------------------------------

    def _hand_out(self) -> None:
        """Idle workers look for tasks. So many look so often that one comes at once."""
        lease = self._options.lease_seconds
        while self._idle:
            worker = self._idle[-1]
            claim = self._asked(
                "claim", lambda w=worker: self._ledger.queue.claim(w, KINDS, lease_seconds=lease)
            )
            if claim is None:
                return
            self._take(worker, claim)

    def _take(self, worker: str, claim: Claim) -> None:
        self._idle.remove(worker)
        del self._idle_since[worker]
        self._begin(claim)

    def _begin(self, claim: Claim) -> None:
        self._running.add(claim)
        needed = self._seconds_of(claim)
        rng, every = self._rng, self._options.preempt_every
        gone = rng.expovariate(1 / every) if claim.task.kind == "train" else needed + 1
        if gone < needed:
            is_killed = rng.random() < self._options.killed_share
            stop = self._kill if is_killed else self._preempt
            self._at(self._now + gone, lambda: stop(claim, gone / needed))
        else:
            self._at(self._now + needed, lambda: self._finish(claim))
        self._beat_later(claim)

    def _seconds_of(self, claim: Claim) -> float:
        task = claim.task
        if task.kind == "outer":
            return OUTER_SECONDS
        if task.kind != "train":
            return 0.0
        if self._began_seconds is None and task.arm == MODULAR:
            self._began_seconds = self._now
        partial_snapshot = self._asked(
            "snapshot",
            lambda: self._ledger.facts.partial_snapshot(MODULAR, task.path, task.phase),
        )
        seconds = self._phase_seconds(task.path, task.phase)
        if partial_snapshot is None:
            return seconds
        return seconds * (1 - partial_snapshot.seconds) + self._options.resume_seconds

    def _beat_later(self, claim: Claim) -> None:
        self._at(self._now + self._beat_seconds, lambda: self._beat(claim))

    def _beat(self, claim: Claim) -> None:
        if claim in self._running:
            lease = self._options.lease_seconds
            if self._asked("renew", lambda: self._ledger.queue.renew(claim, lease)):
                self.counts["renewed"] += 1
                self._beat_later(claim)

    def _finish(self, claim: Claim) -> None:
        self._running.discard(claim)
        facts = facts_of(self.plan, claim.task, self._options.phase_seconds)
        try:
            self._asked("finish", lambda: self._ledger.commit.finish(self.plan, claim, facts))
        except ClaimLost:  # another has done it
            self._come_free(claim.worker)
            return
        self.counts["finished"] += 1
        if claim.task.kind == "outer" and claim.task.phase == self._options.phases - 1:
            self.counts["last_modules"] = self.counts.get("last_modules", 0) + 1
            self._ended_seconds = self._now
        self._come_free(claim.worker)

    def _come_free(self, worker: str) -> None:
        self._away.discard(worker)
        self._idle.append(worker)
        self._begin_idling(worker)
        self._hand_out()

    def _preempt(self, claim: Claim, done: float) -> None:
        """Told to go: saves the phase part-way. `done` is the share of what it had to do."""
        self._running.discard(claim)
        before = self._ledger.facts.partial_snapshot(MODULAR, claim.task.path, claim.task.phase)
        share = done if before is None else before.seconds + (1 - before.seconds) * done
        at = PartialSnapshot(Receipt("partway", "digest", 1), 0, "rows", (), share)
        with contextlib.suppress(ClaimLost):  # another has done it
            self._asked("finish", lambda: self._ledger.commit.release_with_snapshot(claim, at))
        self.counts["preempted"] += 1
        self._go_away(claim.worker)

    def _kill(self, claim: Claim, done: float) -> None:
        self._running.discard(claim)
        self.counts["killed"] += 1
        self._go_away(claim.worker)  # its lease ends, and one that looks for silent workers sees it

    def _go_away(self, worker: str) -> None:
        self._away.add(worker)
        self._at(self._now + AWAY_SECONDS, lambda: self._come_free(worker))
        self._hand_out()


def facts_of(plan: Plan, task: Task, seconds: float) -> list[Fact]:
    """The facts that a worker records for the task, with bytes that are never read."""
    return [
        dataclasses.replace(fact, seconds=seconds) if isinstance(fact, PathTrained) else fact
        for fact in made_up_facts.facts_of(plan, task)
    ]


if __name__ == "__main__":
    main()
