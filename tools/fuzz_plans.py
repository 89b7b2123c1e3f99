"""Checks ledger and scheduler by made-up runs: plans of any settings, by workers that die, hang,
come back late and lose objects. No bytes are computed, and a run takes a tenth of a second.

    python tools/fuzz_plans.py --runs 300 --seed 0
    python tools/fuzz_plans.py --minutes 60 --database postgresql --at-once 4

A run draws its settings, then what happens to it. No task may be claimed before the facts are there
that it reads. None may be finished under a lost claim. The run must come to its end: nothing may be
left to do that no worker can claim. On SQLite one program plays all workers in turn, and the same
seed gives the same run. `--at-once N` has N programs do so on one ledger. `deadlocks` counts the
transactions that the server ended because each of two waited for the other.

`--run N` does one run alone. The last line is one JSON object; exit code 1: a run was wrong.
"""

import argparse
import dataclasses
import json
import random
import sys
import time
import traceback
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from support.command_line import at_least_one, parser_of
from support.made_up_facts import facts_of, receipt
from support.servers import server_at
from support.smallest_run import CONFIG, SHARINGS

from dipaco.config import MODULAR
from dipaco.control.errors import NotAvailable, RecoveryFailed
from dipaco.control.facts.facts import PartialSnapshot
from dipaco.control.ledger import Ledger, open_ledger
from dipaco.control.planning.scheduler import due
from dipaco.control.planning.tasks import Claim, ModuleReady, Task
from dipaco.errors import ClaimLost, DipacoError, WorkersActive
from dipaco.overrides import override
from dipaco.schedule.arm import Arm
from dipaco.schedule.plan import Plan
from dipaco.topology import PER_PATH, Level, Topology

EARLY, LATE = ("embed",), ("block_00", "final_norm", "head")
MODULES = {
    **SHARINGS,
    "4x2": (Level(name="early", parts=EARLY, experts=4), Level(name="late", parts=LATE, experts=2)),
    "private": (
        Level(name="early", parts=EARLY, experts=3),
        Level(name="own", parts=LATE, experts=PER_PATH),
        Level(name="late", experts=2),
    ),
}
# Values of settings, each as `--set` takes them. The first is the default, and half of the draws.
OPTIONS = (
    ("", "phases=2 evaluation.every_phases=1", "phases=5 evaluation.every_phases=2"),
    ("", *(f"outer.path_share={share}" for share in (0.1, 0.2, 0.3, 0.5, 0.75))),
    ("", "outer.quorum=0.5 outer.grace_seconds=0", "outer.quorum=0.7 outer.grace_seconds=0.003"),
    ("", "outer.delay=1"),
    ("", "routing.alternations=1", "routing.alternations=2", "routing.alternations=1,2"),
    ("", "inner.hold_out=0.2"),
    ("", "data.slices=3"),
    ("", "samples.prompts=2 samples.tokens=4"),
    ("", "reroute.every=8"),
    ("", "baselines=dense,data_parallel"),
    ("", "outer.synchronous=true"),
)
RARE = "outer.synchronous=true"  # refused beside most others
OF_AN_ARM = ("pretrain", "train", "outer", "label", "check", "score", "evaluate", "sample")
WORKERS = 6
HUNG_SECONDS = 1e6  # without progress: more than any task is given
MOST_MOVES = 20_000  # a run has some hundred tasks
# What becomes of a claim, and how often. Whatever is left over: its task is finished.
ENDS = {"given back": 0.04, "saved": 0.06, "dead": 0.04, "hung": 0.06, "lost object": 0.03}


class Wrong(Exception):
    """A run did what no run may do."""


def main() -> int:
    options = parse()
    counts = {"done": 0, "refused": 0}
    wrong: list[dict[str, Any]] = []
    begun = time.monotonic()
    numbers = range(options.runs) if options.run is None else [options.run]
    with server_at(options.database) as url:
        for number in numbers:
            if options.minutes is not None and time.monotonic() - begun > 60 * options.minutes:
                break
            dice = random.Random(f"{options.seed} {number}")
            settings = drawn(dice)
            try:
                counts[one_run(settings, url, options.at_once, dice)] += 1
            except Exception as error:
                wrong.append({"run": number, "settings": settings, "problem": str(error)[:500]})
                print(number, settings, traceback.format_exc(), flush=True)
        deadlocks = None if url is None else deadlocks_of(url)
    runs, seconds = sum(counts.values()) + len(wrong), round(time.monotonic() - begun)
    answer = {"runs": runs, **counts, "wrong": wrong, "deadlocks": deadlocks}
    print(json.dumps({**answer, "seed": options.seed, "seconds": seconds}))
    return 1 if wrong else 0


def parse() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--runs", type=at_least_one, default=300, help="how many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, help="begin no run after so many")
    parser.add_argument("--run", type=int, metavar="N", help="this run alone")
    parser.add_argument("--database", help="postgresql = one started here; postgresql://...")
    parser.add_argument("--at-once", type=at_least_one, default=1, help="programs on one ledger")
    options = parser.parse_args()
    if options.run is None and options.minutes is not None:
        options.runs = 10**9
    return options


def drawn(dice: random.Random) -> str:
    """The settings of a run: its modules, then what `--set` takes."""
    chosen = [dice.choice(list(MODULES))]
    for first, *others in OPTIONS:
        odds = 0.95 if RARE in others else 0.5
        chosen.append(first if dice.random() < odds else dice.choice(others))
    return " ".join(each for each in chosen if each)


def plan_of(settings: str) -> Plan:
    """Raises `DipacoError`: they do not fit each other."""
    modules, *words = settings.split()
    inner = dataclasses.replace(CONFIG.inner, steps=3)
    config = dataclasses.replace(CONFIG, inner=inner, topology=Topology(levels=MODULES[modules]))
    return override(config, words).plan


def one_run(settings: str, url: str | None, at_once: int, dice: random.Random) -> str:
    """done, or refused. Raises `Wrong`."""
    try:
        plan = plan_of(settings)
    except DipacoError:
        return "refused"
    place = (Path(":memory:"), "") if url is None else (url, f"fuzz_{uuid.uuid4().hex[:12]}")
    with open_ledger(*place) as ledger:
        ledger.start({}, plan.slices)
        if at_once == 1:
            Players(ledger, plan, dice, "w").play()
        else:
            beside(place, plan, at_once, dice)
        check_end(ledger, plan)
        if url is not None:
            ledger.drop()
    return "done"


def beside(place: Any, plan: Plan, at_once: int, dice: random.Random) -> None:
    """Several programs play on one ledger, each some workers."""

    def play(number: int, seed: float) -> None:
        with open_ledger(*place) as ledger:
            Players(ledger, plan, random.Random(seed), f"p{number}-", is_alone=False).play()

    with ThreadPoolExecutor(at_once) as threads:
        played = [threads.submit(play, number, dice.random()) for number in range(at_once)]
        for each in played:
            each.result()


def deadlocks_of(url: str) -> int:
    """Transactions that the server has ended for one."""
    import psycopg

    with psycopg.connect(url) as connection:
        rows = connection.execute("SELECT sum(deadlocks) FROM pg_stat_database").fetchall()
    return int(rows[0][0])


class Players:
    """Workers of one run, played in turn.

    Args:
      prefix: of their names.
      is_alone: there is no other program, so a run may go back.
    """

    def __init__(
        self, ledger: Ledger, plan: Plan, dice: random.Random, prefix: str, *, is_alone: bool = True
    ):
        self._ledger, self._plan, self._dice, self._is_alone = ledger, plan, dice, is_alone
        self._names = [f"{prefix}{number}" for number in range(WORKERS)]
        self._held: dict[str, Claim] = {}
        self._stale: list[Claim] = []  # of workers that were thought dead, and come back

    def play(self) -> None:
        """Until nothing is left to do. Raises `Wrong`."""
        idle = 0
        for _ in range(MOST_MOVES):
            name = self._dice.choice(self._names)
            if name in self._held:
                self._go_on(name)
            elif (claim := self._ledger.queue.claim(name)) is not None:
                self._check_needs(claim.task)
                self._held[name] = claim
                idle = 0
            elif self._ledger.queue.is_finished():
                return
            elif not self._held:
                idle += 1
                self._wait(idle)
            if self._is_alone and self._dice.random() < 0.003:
                self._go_back()
        raise Wrong(f"no end: {self._left()}")

    def _arm_of(self, task: Task) -> Arm | None:
        return self._plan.arm(task.arm) if task.kind in OF_AN_ARM else None

    def _left(self) -> str:
        return ", ".join(f"{each.task} is {each.state}" for each in self._ledger.queue.unfinished())

    def _wait(self, idle: int) -> None:
        """Nothing is claimable, and no worker of this program holds anything."""
        self._ledger.quorums.end_grace(self._plan)
        self._ledger.failures.retry()
        for claim in self._stale:
            self._come_back(claim)
        self._stale.clear()
        if idle > 3:
            time.sleep(0.002)
        if idle > (40 if self._is_alone else 5000):
            raise Wrong(f"nobody can do what is left: {self._left()}")

    def _go_on(self, name: str) -> None:
        """The worker ends with its claim, in one way or another."""
        claim, chance = self._held.pop(name), self._dice.random()
        for how, share in ENDS.items():
            if chance < share:
                self._end(how, name, claim)
                return
            chance -= share
        arm = self._arm_of(claim.task)
        if claim.task.kind == "train" and arm and arm.goes_ahead(claim.task.path, claim.task.phase):
            modules = set(arm.topology.modules_of(claim.task.path))
            if not self._ledger.facts.modules_at(arm.name, claim.task.phase) >= modules:
                self._save(claim, modules)  # it takes them before its phase ends
                return
        try:
            if claim.task.kind == "outer" and arm and arm.has_quorum:
                self._ledger.quorums.take(claim)
            self._ledger.commit.finish(self._plan, claim, facts_of(self._plan, claim.task))
        except ClaimLost as lost:
            if self._is_alone:
                raise Wrong(f"the holder of {claim.task} was refused") from lost

    def _end(self, how: str, name: str, claim: Claim) -> None:
        ledger = self._ledger
        if how == "given back":
            ledger.queue.give_back(claim)
        elif how == "saved" and claim.task.kind == "train":
            self._save(claim, set())
        elif how == "lost object" and (cause := self._maker_for(claim.task)) is not None:
            try:
                ledger.redos.redo(claim, cause, "an input", "it is missing")
            except RecoveryFailed:
                ledger.queue.give_back(claim)
        elif how == "hung":  # It lives, and renews its lease.
            ledger.queue.renew(claim, stalled_seconds=HUNG_SECONDS)
            ledger.reaper.reap("another")
            self._stale.append(claim)
        else:
            ledger.queue.give_back_of(name)
        if self._stale and self._dice.random() < 0.3:
            self._come_back(self._stale.pop(self._dice.randrange(len(self._stale))))

    def _save(self, claim: Claim, needed: set) -> None:
        saved = PartialSnapshot(receipt("partial", *claim.task, claim.attempt), 1, "rows", (), 1.0)
        try:
            self._ledger.commit.release_with_snapshot(claim, saved, needed)
        except ClaimLost as lost:
            if self._is_alone:
                raise Wrong(f"the holder of {claim.task} was refused") from lost

    def _come_back(self, claim: Claim) -> None:
        """A worker that was suspended finishes what others have by now."""
        try:
            self._ledger.commit.finish(self._plan, claim, facts_of(self._plan, claim.task))
        except ClaimLost:
            return
        raise Wrong(f"{claim.task} was finished under a lost claim")

    def _maker_for(self, task: Task) -> Task | None:
        """A task that made what this one reads."""
        if task.kind == "outer":
            paths = self._plan.arm(task.arm).paths_through(task.module, task.phase)
            sent = [
                each.path
                for each in self._ledger.facts.contributions(task.arm, task.module, task.phase)
            ]
            there = [path for path in paths if path in sent]
            return Task("train", task.arm, str(there[0]), task.phase) if there else None
        if task.kind in ("train", "label", "score") and task.arm == MODULAR and task.phase:
            arm = self._plan.arm(task.arm)
            if arm.has_outer_steps and not arm.goes_ahead(task.path, task.phase):
                module = arm.topology.modules_of(task.path)[0]
                return Task("outer", task.arm, str(module), task.phase - 1)
        return None

    def _go_back(self) -> None:
        ledger, plan = self._ledger, self._plan
        modules = plan.arm(MODULAR).topology.modules
        reached = ledger.progress.phases_reached(MODULAR, len(modules))
        if reached < 0 or ledger.queue.is_finished():
            return
        ledger.queue.give_back_all()
        self._held.clear()
        phase = self._dice.randint(0, reached)
        facts: list[Any] = []
        for module in modules:
            stored = ledger.facts.module(MODULAR, module, phase)
            facts.append(
                ModuleReady(
                    arm=MODULAR, module=module, phase=phase, parameters=stored.parameters,
                    outer_state=stored.outer_state, gradient_norm=None,
                )
            )  # fmt: skip
        try:
            if phase in plan.arm(MODULAR).alternations:
                facts.append(ledger.facts.stage("route", phase))
            ledger.rollbacks.go_back(MODULAR, phase, due(plan, facts, ledger.facts))
        except (NotAvailable, WorkersActive):
            return

    def _check_needs(self, task: Task) -> None:
        """Raises `Wrong` if a fact is missing that a claimed task reads."""
        if self._arm_of(task) is None:
            stage = {"route": "prepare", "reroute": "route", "report": "route"}.get(task.kind)
            missing = [] if stage is None else [] if self._has(stage, 0) else [stage]
        else:
            missing = [what for what, is_there in self._needs(task).items() if not is_there()]
        if missing:
            raise Wrong(f"{task} is due without {', '.join(missing)}")

    def _has(self, stage: Any, phase: int) -> bool:
        try:
            self._ledger.facts.stage(stage, phase)
        except NotAvailable:
            return False
        return True

    def _needs(self, task: Task) -> dict[str, Callable[[], bool]]:
        """What a task of an arm reads -> whether it is there."""
        facts, arm, phase = self._ledger.facts, self._plan.arm(task.arm), task.phase
        modules, paths = set(arm.topology.modules), set(range(arm.topology.num_paths))
        is_base = arm is self._plan.base
        route = {
            "its router": lambda: self._has("route", arm.routed_at(min(phase, arm.phases - 1)))
        }
        if task.kind == "pretrain":
            return {"its text": lambda: self._has("prepare", 0)}
        if task.kind == "outer":
            through = arm.paths_through(task.module, phase)
            enough = arm.quorum_of(task.module, phase) if arm.has_quorum else len(through)
            return route | {
                "its module": lambda: task.module in facts.modules_at(arm.name, phase),
                "contributions": lambda: (
                    facts.num_contributions(arm.name, task.module, phase) >= enough
                ),
            }
        if task.kind == "evaluate":
            return {"scores": lambda: facts.num_scored(arm.name, phase) == len(paths)}
        if task.kind == "sample":
            return {"its evaluation": lambda: (arm.name, phase) in facts.evaluated()}
        of_path = modules if arm.is_synchronous else set(arm.topology.modules_of(task.path))
        ahead = task.kind == "train" and arm.goes_ahead(task.path, phase)
        needs = {"its modules": lambda: ahead or facts.modules_at(arm.name, phase) >= of_path}
        if task.kind == "train":
            needs |= route
            if not arm.is_synchronous:
                before = arm.trained_before(task.path, phase)
                needs["its turn"] = lambda: task.path in arm.paths_in(phase)
                needs["its phase before"] = lambda: (
                    before is None or task.path in facts.trained(arm.name, before)
                )
        elif task.kind == "score" and not is_base:
            needs |= route
            if arm.hold_out:
                needs["checks"] = lambda: facts.checked(arm.name, phase) == paths
        elif task.kind == "check" and phase != arm.routed_at(phase):
            needs["the check before"] = lambda: task.path in facts.checked(arm.name, phase - 1)
        return needs


def check_end(ledger: Ledger, plan: Plan) -> None:
    """Raises `Wrong` if a run that is finished lacks something."""
    for arm in plan.arms:
        for phase in range(arm.phases + 1):
            if ledger.facts.modules_at(arm.name, phase) != set(arm.topology.modules):
                raise Wrong(f"modules of {arm.name} at phase {phase} are missing")
    taken = ledger.quorums.taken(MODULAR)
    contributions = [
        (one.phase, one.path, of) for (of, _), all_of in taken.items() for one in all_of
    ]
    if len(set(contributions)) != len(contributions):
        raise Wrong("a contribution was taken twice")


if __name__ == "__main__":
    sys.exit(main())
