"""Checks ledger and scheduler by made-up runs: plans of any settings, on hosts of one kind or two
with a folder or a bucket, whose workers die, hang, come back late, lose objects, delete and go
back. No bytes are computed, and a run takes a fifth of a second.

    python tools/fuzz_plans.py --runs 300 --seed 0
    python tools/fuzz_plans.py --minutes 60 --database postgresql --at-once 4

A run draws its settings and hosts, then what happens (`support/played_hosts.py`). No task may be
claimed before the facts are there that it reads. None may be finished under a lost claim. Unless
objects were lost, none may lack an object or fail. The run must come to its end: nothing may be
left to do that no worker can claim. One program plays all workers in turn, and the same seed gives
the same run. `--at-once N` has N programs do so on one ledger. `deadlocks` counts the transactions
that the server ended because each of two waited for the other.

`--run N` does one run alone. The last line is one JSON object; exit code 1: a run was wrong.
"""

import contextlib
import dataclasses
import random
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from support.command_line import at_least_one
from support.fuzzer import Fuzzer
from support.made_up_facts import facts_of
from support.played_hosts import Fleet, Play, Wrong, played
from support.smallest_run import CONFIG, SHARINGS

from dipaco.config import MODULAR, RunConfig
from dipaco.control.database.location import DatabaseLocation
from dipaco.control.errors import NotAvailable
from dipaco.control.facts.facts import PartialSnapshot
from dipaco.control.ledger import Ledger, open_ledger
from dipaco.control.planning.tasks import Claim, Fact, Task
from dipaco.errors import DipacoError
from dipaco.overrides import override
from dipaco.receipt import Receipt
from dipaco.runs.run import Run
from dipaco.runs.sent_snapshots import sends_snapshot
from dipaco.schedule.arm import Arm
from dipaco.schedule.plan import Plan
from dipaco.store.address import Address
from dipaco.store.errors import ObjectMissing
from dipaco.store.layout import CONTRIBUTIONS, MODULES, OUTER_STATES, SNAPSHOTS
from dipaco.topology import PER_PATH, Level, Topology
from dipaco.workers import claiming, loop
from dipaco.workers.errors import Preempted
from dipaco.workers.late_modules import modules_needed

EARLY, LATE = ("embed",), ("block_00", "final_norm", "head")
SHAPES = {
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
    ("", "retention.send_snapshots_every=2", "retention.send_snapshots_every=3"),
    ("", "retention.snapshots=1", "retention.snapshots=1 retention.contributions=1"),
    ("", "retention.modules=4"),
    ("", "outer.synchronous=true"),
)
RARE = "outer.synchronous=true"  # refused beside most others
HAPPENED: Counter[str] = Counter()  # in all runs
OF_AN_ARM = ("pretrain", "train", "outer", "label", "check", "score", "evaluate", "sample")


def main() -> int:
    fuzzer = Fuzzer(__doc__, ("done", "refused"))
    fuzzer.parser.add_argument(
        "--at-once", type=at_least_one, default=1, help="programs on one ledger"
    )
    return fuzzer.main(lambda dice, options, url: one_run(dice, url, options.at_once), HAPPENED)


def drawn(dice: random.Random) -> str:
    """The settings of a run: the shape of its modules, then what `--set` takes."""
    chosen = [dice.choice(list(SHAPES))]
    for first, *others in OPTIONS:
        odds = 0.95 if RARE in others else 0.5
        chosen.append(first if dice.random() < odds else dice.choice(others))
    return " ".join(each for each in chosen if each)


def config_of(settings: str) -> RunConfig:
    """Raises `DipacoError`: they do not fit each other."""
    shape, *words = settings.split()
    inner = dataclasses.replace(CONFIG.inner, steps=3)
    config = dataclasses.replace(CONFIG, inner=inner, topology=Topology(levels=SHAPES[shape]))
    config = override(config, words)
    assert config.plan.arms
    return config


def one_run(
    dice: random.Random, url: str | None, at_once: int = 1, settings: str | None = None
) -> tuple[str, str, str]:
    """(done or refused, the settings and hosts, what is wrong)."""
    settings = drawn(dice) if settings is None else settings
    fleet = Fleet.drawn(dice)
    try:
        config = config_of(settings)
    except DipacoError as error:
        return "refused", settings, str(error)
    said = f"{settings}; {fleet}"
    try:
        with ledger_at(url, at_once) as place:
            World(config, place, fleet, dice).play(at_once)
    except Exception as error:
        raise Wrong(said) from error
    return "done", said, ""


@contextlib.contextmanager
def ledger_at(url: str | None, at_once: int) -> Generator[DatabaseLocation]:
    """A place for a new ledger."""
    if url is not None:
        location = DatabaseLocation(url, f"fuzz_{uuid.uuid4().hex[:12]}")
        yield location
        with open_ledger(*location) as ledger:
            ledger.drop()
    elif at_once == 1:
        yield DatabaseLocation(Path(":memory:"), "")
    else:
        with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
            yield DatabaseLocation(Path(folder) / "ledger.sqlite", "")


class World:
    """One run, with all objects that its hosts share."""

    def __init__(
        self, config: RunConfig, place: DatabaseLocation, fleet: Fleet, dice: random.Random
    ):
        self.config, self.place, self.fleet, self.dice = config, place, fleet, dice
        self.there: set[str] = set()  # names in the folder or the bucket
        self.on_disks: list[set[str]] = []  # names on the disk of each host
        # A worker may lack what is on another's disk alone.
        all_sent = not fleet.has_bucket or config.retention.send_snapshots_every == 1
        self.may_lack = not (fleet.is_lossless and all_sent)
        self.kinds = len(set(fleet.kinds))

    def play(self, at_once: int) -> None:
        """Raises `Wrong`."""
        with open_ledger(*self.place) as ledger, played(), instead_of_execution():
            ledger.start({}, self.config.plan.slices)
            if at_once == 1:
                self._play(ledger, self.dice, "", is_alone=True)
            else:
                self._play_beside(at_once)
            self._check_end(ledger)

    def _play_beside(self, at_once: int) -> None:
        """Several programs play on one ledger, each some workers."""

        def play(number: int, seed: float) -> None:
            with open_ledger(*self.place) as ledger:
                self._play(ledger, random.Random(seed), f"p{number}-", is_alone=False)

        with ThreadPoolExecutor(at_once) as threads:
            begun = [threads.submit(play, number, self.dice.random()) for number in range(at_once)]
            for each in begun:
                each.result()

    def _play(self, ledger: Ledger, dice: random.Random, prefix: str, *, is_alone: bool) -> None:
        def new_run(name: str) -> tuple[Run, Callable[[], None]]:
            run = MadeUpRun(self, ledger, lambda: plays[0].in_between() if plays else None)
            return run, run.objects.disk.clear

        def lose_object(task: Task) -> bool:
            names = sorted({name for name, _ in Needs(ledger, self.config.plan, task).objects()})
            if names:
                name = dice.choice(names)
                for place in (self.there, *self.on_disks):
                    place.discard(name)
            return bool(names)

        def check(task: Task) -> None:
            missing = Needs(ledger, self.config.plan, task).missing()
            if missing and is_alone:
                raise Wrong(f"{task} is due without {', '.join(missing)}")

        plays: list[Play] = []
        play = Play(
            self.fleet, new_run, dice, lose_object=lose_object, check=check, prefix=prefix,
            is_alone=is_alone,
        )  # fmt: skip
        plays.append(play)
        play.until(ledger.queue.is_finished)
        if play.counts["retried"] and is_alone and not self.may_lack and self.kinds == 1:
            raise Wrong("a task failed for good where nothing was lost")
        HAPPENED.update(play.counts)

    def _check_end(self, ledger: Ledger) -> None:
        """Raises `Wrong` if a run that is finished lacks something."""
        for arm in self.config.plan.arms:
            for phase in range(arm.phases + 1):
                if ledger.facts.modules_at(arm.name, phase) != set(arm.topology.modules):
                    raise Wrong(f"modules of {arm.name} at phase {phase} are missing")
        contributions = [
            (one.phase, one.path, of)
            for (of, _), taken in ledger.quorums.taken(MODULAR).items()
            for one in taken
        ]
        if len(set(contributions)) != len(contributions):
            raise Wrong("a contribution was taken twice")


@contextlib.contextmanager
def instead_of_execution() -> Generator[None]:
    """Tasks make facts up."""
    before = loop.execute
    loop.execute = lambda run, claim, *_: run.execute(claim, *_)  # ty: ignore
    try:
        yield
    finally:
        loop.execute = before


class MadeUpObjects:
    """Names of objects on one host, and in what it shares with others: `store/objects.py`."""

    root = Path("/no run")

    def __init__(self, world: World, in_between: Callable[[], None]):
        self._world, self._in_between = world, in_between
        self.disk: set[str] = set()
        self.remote = "a bucket" if world.fleet.has_bucket else None
        world.on_disks.append(self.disk)

    def add(self, name: str, *, is_sent: bool = True) -> None:
        if is_sent:
            self._world.there.add(name)
        if self.remote is not None:
            self.disk.add(name)

    def read(self, name: str) -> None:
        """Raises `ObjectMissing`."""
        if name not in self.disk and name not in self._world.there:
            raise ObjectMissing(file=self.root / name, name=name)

    def file(self, receipt: Receipt) -> None:
        self._in_between()
        self.read(receipt.name)

    def folder(self, name: str) -> None:
        self._in_between()
        self.read(name)

    def need_shared(self, name: str) -> None:
        """Raises `ObjectMissing`."""
        if name not in self._world.there:
            raise ObjectMissing(file=self.root / name, name=name)

    def turns_up(self, error: ObjectMissing, *, was_sent: bool) -> bool:
        return error.values["name"] in self._world.there

    def names(self, *folders: str) -> set[str]:
        starts = tuple(f"{folder}/" for folder in folders)
        return {name for name in self.disk | self._world.there if name.startswith(starts)}

    def delete(self, name: str) -> None:
        self.disk.discard(name)
        self._world.there.discard(name)
        self._in_between()

    def delete_folder_if_empty(self, name: str) -> None: ...

    def delete_partial_writes(self, *, is_alone: bool) -> None: ...


class MadeUpRun(Run):
    """A run on one host, whose tasks compute nothing."""

    objects: Any

    def __init__(self, world: World, ledger: Ledger, in_between: Callable[[], None]):
        address = Address.parse(str(MadeUpObjects.root))
        super().__init__(address, world.config, world.place, ledger)
        self._world, self.objects = world, MadeUpObjects(world, in_between)

    def execute(
        self, claim: Claim, callbacks: Any, should_stop: Callable[[], bool], *_: Any
    ) -> list[Fact]:
        """What `workers/execution.py` returns and raises. Objects are names."""
        task, ledger, plan = claim.task, self.ledger, self.plan
        if task.kind == "outer" and plan.arm(task.arm).has_quorum:
            ledger.quorums.take(claim)
        for name, is_late in Needs(ledger, plan, task).objects():
            try:
                if not is_late:
                    self.objects.read(name)
            except ObjectMissing as error:
                if not self._world.may_lack and ledger.queue.is_held(claim):
                    raise Wrong(f"{task} lacks {name}") from error
                raise
        if task.kind == "train":
            self._train(claim, should_stop)
        return [self._stored(fact, claim) for fact in facts_of(plan, task)]

    def _train(self, claim: Claim, should_stop: Callable[[], bool]) -> None:
        arm, task = self.plan.arm(claim.task.arm), claim.task
        if arm.is_synchronous:
            return
        if should_stop():
            raise Preempted(self._partial_snapshot(claim, 1))
        merges_at = arm.merges_at(task.path, task.phase)
        if merges_at is not None:
            needed = modules_needed(self, claim, merges_at)
            if not self.ledger.facts.modules_at(arm.name, task.phase).issuperset(needed):
                raise Preempted(self._partial_snapshot(claim, merges_at))

    def _partial_snapshot(self, claim: Claim, step: int) -> PartialSnapshot:
        name = f"{SNAPSHOTS}/partial/{claim.task_id}/{claim.attempt}"
        self.objects.add(name)
        return PartialSnapshot(Receipt(name, "partial", 8), step, "rows", (), 1.0)

    def _stored(self, fact: Fact, claim: Claim) -> Fact:
        """The fact with receipts of objects that are there now, made by this kind of machine."""
        task = claim.task
        kind = claiming.machine() if self._world.kinds > 1 else ""
        changes: dict[str, Any] = {}
        for field, folder in FOLDERS.get(type(fact).__name__, {}).items():
            made = getattr(fact, field)
            if made is None:
                continue
            digest = f"{made.digest}{kind}"
            name, is_sent = f"{folder}/{digest}", True
            if field == "snapshot":
                name += f"/{claim.attempt}"
                if self.objects.remote is not None:
                    arm = self.plan.arm(task.arm)
                    is_sent = sends_snapshot(self, arm, task.path, task.phase)
                changes["machine"] = claiming.machine()
            changes[field] = Receipt(name, digest, 8)
            if field == "parameters" and task.kind == "outer":
                arm = self.plan.arm(task.arm)
                if not Needs(self.ledger, self.plan, task).contributions(arm):
                    before = self.ledger.facts.module(task.arm, task.module, task.phase)
                    changes = {"parameters": before.parameters, "outer_state": before.outer_state}
                    break
            self.objects.add(name, is_sent=is_sent)
        return dataclasses.replace(fact, **changes)


FOLDERS: dict[str, dict[str, str]] = {  # fact -> field -> its folder
    "PathTrained": {"snapshot": SNAPSHOTS},
    "Contribution": {"message": CONTRIBUTIONS},
    "ModuleReady": {"parameters": MODULES, "outer_state": OUTER_STATES},
}


class Needs:
    """What a task reads."""

    def __init__(self, ledger: Ledger, plan: Plan, task: Task):
        self._ledger, self._plan, self._task = ledger, plan, task
        self._arm = plan.arm(task.arm) if task.kind in OF_AN_ARM else None

    def contributions(self, arm: Arm) -> list[str]:
        """Names of those that an outer step takes."""
        task, facts = self._task, self._ledger.facts
        if not arm.has_quorum:
            rows = facts.contributions(arm.name, task.module, task.phase)
            return [row.message.name for row in rows]
        taken = {(one.phase, one.path) for one in self._ledger.quorums.of_step(task)}
        return [
            row.message.name
            for phase in sorted({phase for phase, _ in taken})
            for row in facts.contributions(arm.name, task.module, phase)
            if (phase, row.path) in taken
        ]

    def objects(self) -> Iterator[tuple[str, bool]]:
        """(name, whether it is read after a part of the work)."""
        arm, task, facts = self._arm, self._task, self._ledger.facts
        if arm is None or task.kind in ("evaluate", "sample"):
            return
        if task.kind == "outer":
            for name in self.contributions(arm):
                yield name, False
        of_base_start = arm is self._plan.base and task.phase == 0
        if not of_base_start:
            modules = self._modules(arm)
            ahead = task.kind == "train" and arm.goes_ahead(task.path, task.phase)
            there = facts.modules_at(arm.name, task.phase)
            for module in modules:
                if module in there:
                    stored = facts.module(arm.name, module, task.phase)
                    yield stored.parameters.name, ahead
                    if task.kind == "outer" and stored.outer_state is not None:
                        yield stored.outer_state.name, False
        if task.kind in ("pretrain", "train"):
            paths = range(arm.topology.num_paths) if arm.is_synchronous else [task.path]
            for path in paths:
                before = arm.trained_before(path, task.phase)
                if before is not None and path in facts.trained(arm.name, before):
                    yield facts.snapshot(arm.name, path, before).receipt.name, False
            partial = facts.partial_snapshot(task.arm, task.path, task.phase)
            if partial is not None:
                yield partial.receipt.name, False

    def _modules(self, arm: Arm) -> list[Any]:
        if self._task.kind == "outer":
            return [self._task.module]
        if arm.is_synchronous:
            return list(arm.topology.modules)
        return list(arm.topology.modules_of(self._task.path))

    def missing(self) -> list[str]:
        """The facts that it reads and that are not there."""
        if self._arm is None:
            stage = {"route": "prepare", "reroute": "route", "report": "route"}.get(self._task.kind)
            return [] if stage is None or self._has(stage, 0) else [stage]
        return [what for what, is_there in self._facts(self._arm).items() if not is_there()]

    def _has(self, stage: Any, phase: int) -> bool:
        try:
            self._ledger.facts.stage(stage, phase)
        except NotAvailable:
            return False
        return True

    def _facts(self, arm: Arm) -> dict[str, Callable[[], bool]]:
        """What a task of an arm reads -> whether it is there."""
        facts, task, phase = self._ledger.facts, self._task, self._task.phase
        modules, paths = set(arm.topology.modules), set(range(arm.topology.num_paths))
        is_base = arm is self._plan.base
        route = {
            "its router": lambda: self._has("route", arm.routed_at(min(phase, arm.phases - 1)))
        }
        if task.kind == "pretrain":
            return {"its text": lambda: self._has("prepare", 0)}
        if task.kind == "outer":
            through = arm.contributors(task.module, phase)
            enough = arm.enough_of(task.module, phase) if arm.has_quorum else len(through)
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


if __name__ == "__main__":
    sys.exit(main())
