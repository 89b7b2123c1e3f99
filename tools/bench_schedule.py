"""What scheduling costs: a run of 256 paths on a virtual clock, with the real ledger, queue and
scheduler.

    python tools/bench_schedule.py                                      100 phases: some minutes
    python tools/bench_schedule.py --phases 3 --preempt-every 1800 --killed-share 0.02

The paper's 16x16 with private parts: 256 paths, 289 modules. Nothing is trained: a path's phase
takes 120 s of the virtual clock, 5 % more or less, an outer step 2 s. 512 workers claim, renew and
finish tasks in a ledger on SQLite, and are preempted: each is asked to leave once in
`--preempt-every` seconds on average, hands its phase on part-way, and is back after a minute; the
worker that takes the phase over needs `--resume-seconds` to load it. `--killed-share` of them are
killed without warning: their leases must end first, and their phases are done again from the
beginning.

`overhead` is how much longer the phases took than in the ideal schedule: the longest chain of the
same phases and outer steps, with no preemption and no time between them. One module is shared by
all paths, so every phase waits for its last path. `scheduler CPU` is this process's time in claim,
renew and finish, by task. The last line is one JSON object.
"""

import argparse
import heapq
import itertools
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from support.scratch import scratch

from dipaco.control import clock
from dipaco.control.facts import PartialSnapshot
from dipaco.control.ledger import open_ledger
from dipaco.control.plan import BASE, Arm, Plan, one_path
from dipaco.control.tasks import (
    Claim,
    Contribution,
    Fact,
    ModuleReady,
    PathTrained,
    StageDone,
    Task,
)
from dipaco.receipt import Receipt
from dipaco.topology import PER_PATH, Level, ModuleId, Topology

MODULAR = "modular"
KINDS = ("prepare", "pretrain", "route", "train", "outer")  # nothing is evaluated
OUTER_SECONDS = 2.0
SPREAD = 0.05  # of how long phases take
AWAY_SECONDS = 60.0  # until a worker that was preempted is back
BEATS_PER_LEASE = 4


def main() -> None:
    options = parse()
    with scratch(options.folder, "schedule-") as folder:
        answer = Simulation(options, folder).run()
    for name, value in answer.items():
        print(f"{name.replace('_', ' '):28} {value:,}")
    print(json.dumps(answer))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--phases", type=int, default=100)
    parser.add_argument("--grid", type=int, default=16, help="16 = 16x16 = 256 paths")
    parser.add_argument("--workers", type=int, default=512)
    parser.add_argument("--phase-seconds", type=float, default=120.0, help="virtual")
    parser.add_argument("--preempt-every", type=float, default=3600.0, help="virtual, a worker")
    parser.add_argument("--killed-share", type=float, default=0.0, help="of the preempted")
    parser.add_argument("--resume-seconds", type=float, default=5.0, help="virtual")
    parser.add_argument("--lease-seconds", type=float, default=60.0, help="virtual")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", help="of the ledger")
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

    def arm(name: str, topology: Topology, phases: int, *, is_averaged: bool) -> Arm:
        return Arm(
            name=name, topology=topology, phases=phases, total_steps=phases * 100,
            is_averaged=is_averaged, evaluate_every=phases,
        )  # fmt: skip

    base = arm(BASE, one_path(("embed", "block_00", "block_01", "head")), 1, is_averaged=False)
    return Plan(base=base, arms=(arm(MODULAR, topology, phases, is_averaged=True),))


class Simulation:
    """Events on a virtual clock, in order; the ledger believes that clock."""

    def __init__(self, options: argparse.Namespace, folder: Path):
        self._options, self._file = options, folder / "ledger.sqlite"
        self.plan = make_plan(options.grid, options.phases)
        self._topology = self.plan.arm(MODULAR).topology
        self._rng = random.Random(options.seed)
        self._now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._idle = [f"worker {n}" for n in range(options.workers)]
        self._running: set[Claim] = set()
        self._cpu_seconds = 0.0
        self._began_seconds = self._ended_seconds = 0.0
        self.counts = dict.fromkeys(("finished", "preempted", "killed", "renewed", "lost"), 0)

    def run(self) -> dict[str, Any]:
        began = time.monotonic()
        with (
            mock.patch.object(clock, "now_seconds", self._now_seconds),
            open_ledger(self._file) as self._ledger,
        ):
            self._ledger.start({"config": "{}"})
            self._hand_out()
            while self._events and not self._is_over():
                self._now, _, happen = heapq.heappop(self._events)
                happen()
            assert self._is_over(), "it stands still"
            self._check()
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
            "scheduler_cpu_ms_per_task": round(1e3 * self._cpu_seconds / tasks, 3),
            "wall_seconds": round(time.monotonic() - began, 1),
        }

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

    def _asked(self, ask: Callable[[], Any]) -> Any:
        """Something of the ledger; its time counts."""
        began = time.process_time()
        try:
            return ask()
        finally:
            self._cpu_seconds += time.process_time() - began

    def _hand_out(self) -> None:
        """Idle workers look for tasks. So many look so often that one comes at once."""
        lease = self._options.lease_seconds
        while self._idle:
            worker = self._idle[-1]
            claim = self._asked(
                lambda w=worker: self._ledger.queue.claim(w, KINDS, lease_seconds=lease)
            )
            if claim is None:
                return
            self._idle.pop()
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
        if task.phase == 0 and not self._began_seconds:
            self._began_seconds = self._now
        partial_snapshot = self._asked(
            lambda: self._ledger.facts.partial_snapshot(MODULAR, task.path, task.phase)
        )
        seconds = self._phase_seconds(task.path, task.phase)
        if partial_snapshot is None:
            return seconds
        return seconds * (1 - partial_snapshot.seconds) + self._options.resume_seconds

    def _beat_later(self, claim: Claim) -> None:
        self._at(
            self._now + self._options.lease_seconds / BEATS_PER_LEASE, lambda: self._beat(claim)
        )

    def _beat(self, claim: Claim) -> None:
        if claim in self._running:
            lease = self._options.lease_seconds
            assert self._asked(lambda: self._ledger.queue.renew(claim, lease))
            self.counts["renewed"] += 1
            self._beat_later(claim)

    def _finish(self, claim: Claim) -> None:
        self._running.discard(claim)
        facts = facts_of(self.plan, claim.task)
        self._asked(lambda: self._ledger.commit.finish(self.plan, claim, facts))
        self.counts["finished"] += 1
        if claim.task.kind == "outer" and claim.task.phase == self._options.phases - 1:
            self.counts["last_modules"] = self.counts.get("last_modules", 0) + 1
            self._ended_seconds = self._now
        self._idle.append(claim.worker)
        self._hand_out()

    def _preempt(self, claim: Claim, done: float) -> None:
        """Told to go: saves the phase part-way. `done` is the share of what it had to do."""
        self._running.discard(claim)
        before = self._ledger.facts.partial_snapshot(MODULAR, claim.task.path, claim.task.phase)
        share = done if before is None else before.seconds + (1 - before.seconds) * done
        at = PartialSnapshot(Receipt("partway", "digest", 1), 0, "rows", (), share)
        self._asked(lambda: self._ledger.commit.release_with_snapshot(claim, at))
        self.counts["preempted"] += 1
        self._go_away(claim.worker)

    def _kill(self, claim: Claim, done: float) -> None:
        self._running.discard(claim)
        self.counts["killed"] += 1
        for look in range(2 * BEATS_PER_LEASE):
            self._at(self._now + look * self._options.lease_seconds / BEATS_PER_LEASE, self._reap)
        self._go_away(claim.worker)

    def _reap(self) -> None:
        """As idle workers do all the time."""
        self.counts["lost"] += len(self._asked(self._ledger.reaper.reap))
        self._hand_out()

    def _go_away(self, worker: str) -> None:
        def back() -> None:
            self._idle.append(worker)
            self._hand_out()

        self._at(self._now + AWAY_SECONDS, back)
        self._hand_out()


def facts_of(plan: Plan, task: Task) -> list[Fact]:
    """What a worker records for the task, with bytes that are never read."""
    if task.kind in ("prepare", "route"):
        done = StageDone(stage=task.kind, artifacts={}, summary={}, seconds=0.0)
        modules = plan.arm(MODULAR).topology.modules if task.kind == "route" else ()
        return [done, *(ready(MODULAR, module, 0) for module in modules)]
    if task.kind == "outer":
        return [ready(MODULAR, task.module, task.phase + 1)]
    path, arm = task.path, plan.arm(task.arm)
    trained = PathTrained(
        arm=arm.name, path=path, phase=task.phase, snapshot=receipt("snapshot", task), step=0,
        position=0, batches="rows", losses=(1.0, 0.9), tokens=1, seconds=1.0, bytes_down=1,
        bytes_up=1, machine="virtual",
    )  # fmt: skip
    if not arm.is_averaged:
        return [trained, *(ready(arm.name, m, task.phase + 1) for m in arm.topology.modules)]
    contributions = [
        Contribution(
            arm=MODULAR, path=path, module=module, phase=task.phase, base_digest="",
            message=receipt("message", module, task),
        )
        for module in arm.topology.modules_of(path)
    ]  # fmt: skip
    return [trained, *contributions]


def ready(arm: str, module: ModuleId, phase: int) -> ModuleReady:
    return ModuleReady(
        arm=arm, module=module, phase=phase, parameters=receipt(arm, module, phase),
        outer_state=None, gradient_norm=None,
    )  # fmt: skip


def receipt(*what: object) -> Receipt:
    name = "-".join(map(str, what))
    return Receipt(f"objects/{name}", name, 1)


if __name__ == "__main__":
    main()
