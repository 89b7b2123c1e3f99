"""A run with a quorum on a virtual clock, one of whose workers is five times slower now and then;
with the real ledger, queue and scheduler.

Nothing is trained: a path's phase takes as long as its worker needs for it, an outer step no time.
"""

import dataclasses
import heapq
import itertools
import random
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from bench_schedule import MODULAR, facts_of

from dipaco.control import clock
from dipaco.control.grace import AdaptiveGrace
from dipaco.control.ledger import open_ledger
from dipaco.control.plan import BASE, Arm, Plan, one_path
from dipaco.control.tasks import Claim
from dipaco.topology import Level, Topology

SLOWER = 5.0  # times, in a slow spell
QUORUM = 0.5
OTHER_KINDS = ("prepare", "pretrain", "route", "outer")


@dataclasses.dataclass(frozen=True, kw_only=True)
class World:
    """Eight paths (2x4) on eight workers, one of which has slow spells."""

    seed: int
    phases: int = 24
    phase_seconds: float = 100.0
    spread: float = 0.15  # the slowest machine takes so much longer than the fastest
    noise: float = 0.03  # standard deviation of a phase, of itself
    between: float = 8.0  # phases from one slow spell to the next, in the mean
    spell: tuple[float, float] = (0.1, 1.0)  # how long they are, in phases

    @property
    def num_workers(self) -> int:
        return 8

    def plan(self, grace_seconds: float, adaptive: AdaptiveGrace | None) -> Plan:
        """With half of its contributions a module may step."""
        topology = Topology(
            levels=(
                Level(name="early", parts=("embed",), experts=2),
                Level(name="late", parts=("head",), experts=4),
            )
        )
        base = Arm(
            name=BASE,
            topology=one_path(("embed", "head")),
            phases=1,
            total_steps=1,
            is_averaged=False,
            evaluate_every=1,
        )
        modular = Arm(
            name=MODULAR,
            topology=topology,
            phases=self.phases,
            total_steps=self.phases,
            is_averaged=True,
            evaluate_every=self.phases,
            quorum=QUORUM,
            grace_seconds=grace_seconds,
            adaptive_grace=adaptive,
        )
        return Plan(base=base, arms=(modular,))

    def slow_spells(self) -> list[tuple[float, float]]:
        """From when to when the last worker is slow."""
        rng, unit = random.Random(f"spells {self.seed}"), self.phase_seconds
        spells, now = [], 0.0
        while now < 4 * self.phases * unit:
            now += rng.expovariate(1 / (self.between * unit))
            length = rng.uniform(*self.spell) * unit
            spells.append((now, now + length))
            now += length
        return spells

    def needed_seconds(self, worker: int, path: int, phase: int) -> float:
        """For a phase of a path, while the worker is as fast as it is."""
        machine = random.Random(f"machine {self.seed} {worker}").random()
        noise = random.Random(f"noise {self.seed} {path} {phase}").gauss(0.0, self.noise)
        return self.phase_seconds * (1 + self.spread * machine) * (1 + noise)


class Outcome(NamedTuple):
    """How a run went."""

    phase_seconds: float  # in the mean
    path_seconds: float  # that a path's phase took, in the median
    over: int  # steps that came later than 1.2 times as long after the one before
    steps: int
    late: int
    contributions: int


def work_end(begun: float, needed: float, spells: list[tuple[float, float]]) -> float:
    """When work that takes `needed` seconds is done, by a worker that is slow in `spells`."""
    now = begun
    for begin, end in spells:
        if end <= now:
            continue
        if now + needed <= begin:
            break
        needed -= max(0.0, begin - now)
        now = max(now, begin)
        if now + SLOWER * needed <= end:
            return now + SLOWER * needed
        needed -= (end - now) / SLOWER
        now = end
    return now + needed


class QuorumSimulation:
    """Events on a virtual clock, in order; the ledger believes that clock."""

    def __init__(self, world: World, plan: Plan, file: Path):
        self._world, self._plan, self._file = world, plan, file
        self._spells = world.slow_spells()
        self._now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._idle = list(range(world.num_workers))
        self._taken_seconds: list[float] = []
        self._stepped: dict[str, list[float]] = {}

    def run(self) -> Outcome:
        """To the end of the last phase."""
        with (
            mock.patch.object(clock, "now_seconds", self._now_seconds),
            open_ledger(self._file) as self._ledger,
        ):
            self._ledger.start({"config": "{}"})
            self._go_on()
            while self._events:
                self._now, _, happen = heapq.heappop(self._events)
                happen()
            return self._outcome()

    def _now_seconds(self) -> float:
        return self._now

    def _outcome(self) -> Outcome:
        late = self._ledger.quorums.late(MODULAR)
        usual = statistics.median(self._taken_seconds)
        waits = [
            after - before
            for times in self._stepped.values()
            for before, after in itertools.pairwise([0.0, *times])
        ]
        assert {len(times) for times in self._stepped.values()} == {self._world.phases}
        return Outcome(
            phase_seconds=max(map(max, self._stepped.values())) / self._world.phases,
            path_seconds=usual,
            over=sum(wait > 1.2 * usual for wait in waits),
            steps=len(waits),
            late=sum(map(len, late.values())),
            contributions=self._ledger.quorums.num_taken(MODULAR),
        )

    def _at(self, seconds: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (seconds, next(self._numbers), happen))

    def _go_on(self) -> None:
        """What can be done now is done: steps take no time, and idle workers begin to train."""
        ledger = self._ledger
        ledger.quorums.end_grace(self._plan)
        while (claim := ledger.queue.claim("executor", OTHER_KINDS)) is not None:
            self._finish(claim)
        while self._idle:
            worker = self._idle[0]
            claim = ledger.queue.claim(f"worker {worker}", ("train",))
            if claim is None:
                break
            self._idle.pop(0)
            self._train(worker, claim)
        waiting = [at.seconds_left for at in ledger.quorums.in_grace(MODULAR)]
        if waiting:
            self._at(self._now + max(0.0, min(waiting)) + 1e-6, self._go_on)

    def _train(self, worker: int, claim: Claim) -> None:
        needed = self._world.needed_seconds(worker, claim.task.path, claim.task.phase)
        is_slow = worker == self._world.num_workers - 1
        end = work_end(self._now, needed, self._spells if is_slow else [])
        self._taken_seconds.append(end - self._now)

        def done() -> None:
            self._idle.append(worker)
            self._finish(claim)
            self._go_on()

        self._at(end, done)

    def _finish(self, claim: Claim) -> None:
        task = claim.task
        if task.kind == "outer":
            self._ledger.quorums.take(claim)
            self._stepped.setdefault(task.subject, []).append(self._now)
        self._ledger.commit.finish(
            self._plan, claim, facts_of(self._plan, task, self._world.phase_seconds)
        )


def simulate(
    world: World, folder: Path, *, grace_seconds: float, adaptive: AdaptiveGrace | None = None
) -> Outcome:
    """One run in `folder`, which is empty."""
    plan = world.plan(grace_seconds, adaptive)
    return QuorumSimulation(world, plan, folder / "ledger.sqlite").run()


def total(outcomes: list[Outcome]) -> dict[str, Any]:
    """Of several runs, as JSON values."""
    seconds = statistics.mean(each.phase_seconds for each in outcomes)
    usual = statistics.mean(each.path_seconds for each in outcomes)
    return {
        "phase_seconds": round(seconds, 2),
        "of_median": round(seconds / usual, 4),
        "steps_over_1.2": round(sum(e.over for e in outcomes) / sum(e.steps for e in outcomes), 4),
        "late": sum(each.late for each in outcomes),
        "contributions": sum(each.contributions for each in outcomes),
    }
