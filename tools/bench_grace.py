"""How long an outer step should wait for a late path: a fixed grace against an adaptive one, with a
worker that is five times slower now and then.

    python tools/bench_grace.py --phases 8               four real workers, whose steps are paced
    python tools/bench_grace.py --virtual --phases 24    eight on a virtual clock, the real ledger

Four workers train the 2x2 paths of `configs/toy.py`, each step as long as its machine has it; one
of them has slow spells. First with `outer.grace=adaptive`, then with a fixed grace as long as the
adaptive one was in the median; both runs are done again by `tools/replay.py` and must have the same
bits. On the virtual clock nothing is trained, and the fixed grace is the one that makes phases as
long as the adaptive one does, found by bisection.

`of median` is how long a phase takes over how long a path trains in the median. The last line is
one JSON object.
"""

import argparse
import contextlib
import dataclasses
import itertools
import json
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any
from unittest import mock

from replay import differences
from support.scratch import scratch
from support.slow_spells import QUORUM, SLOWER, Outcome, World, simulate, total

from dipaco.config import MODULAR, RunConfig
from dipaco.control.grace import AdaptiveGrace
from dipaco.control.queue import ALL_KINDS
from dipaco.control.tasks import Claim, Fact, Kind, ModuleReady, PathTrained
from dipaco.overrides import load_config
from dipaco.runs.opening import create_or_open, open_run
from dipaco.runs.run import Run
from dipaco.workers import phase_start
from dipaco.workers.callbacks import NullCallbacks
from dipaco.workers.heartbeat import LeaseRenewer
from dipaco.workers.loop import Worker
from dipaco.workers.tasks import train

TOY = Path(__file__).parents[1] / "configs" / "toy.py"
NUM_WORKERS = 4
MOST_SHARE = 1.0  # of a phase, that an adaptive grace lasts at most
LOOK_SECONDS = 0.01


def main() -> int:
    options = parse()
    with scratch(options.folder, "grace-") as folder:
        answer = on_virtual_clock(options, folder) if options.virtual else paced(options, folder)
    for name in ("adaptive", "fixed"):
        print(name, *(f"{key.replace('_', ' ')} {value}" for key, value in answer[name].items()))
    print(json.dumps(answer))
    return 0 if answer.get("digest_equal", True) else 1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--phases", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--spread", type=float, default=0.15, help="of the machines' speeds")
    parser.add_argument("--between", type=float, default=4.0, help="phases between slow spells")
    parser.add_argument("--step-seconds", type=float, default=0.4, help="of the fastest machine")
    parser.add_argument("--steps", type=int, default=10, help="of a phase")
    parser.add_argument("--virtual", action="store_true", help="nothing is trained")
    parser.add_argument("--seeds", type=int, default=4, help="with --virtual: as many worlds")
    parser.add_argument("--folder", help="of the runs")
    return parser.parse_args()


# --- on a virtual clock -----------------------------------------------------------------------


def on_virtual_clock(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The same worlds with both graces."""
    numbers = itertools.count()
    default = load_config(TOY).outer

    def runs(seconds: float, adaptive: AdaptiveGrace | None = None) -> list[Outcome]:
        outcomes = []
        for seed in range(options.seed, options.seed + options.seeds):
            place = folder / str(next(numbers))
            place.mkdir()
            world = World(
                seed=seed,
                phases=options.phases,
                spread=options.spread,
                between=options.between,
            )
            outcome = simulate(world, place, grace_seconds=seconds, adaptive=adaptive)
            outcomes.append(outcome)
        return outcomes

    settings = AdaptiveGrace(default.grace_deviations, default.grace_margin)
    adaptive = total(runs(default.grace_seconds, settings))
    low, high, fixed = 0.0, 60.0, {}
    for _ in range(8):
        seconds = (low + high) / 2
        fixed = {"grace_seconds": round(seconds, 2), **total(runs(seconds))}
        if fixed["phase_seconds"] < adaptive["phase_seconds"]:
            low = seconds
        else:
            high = seconds
    return {"clock": "virtual", "phases": options.phases, "adaptive": adaptive, "fixed": fixed}


# --- with paced workers -----------------------------------------------------------------------


def paced(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Both graces on the same machines, one after the other."""
    phase_seconds = options.steps * options.step_seconds
    most = MOST_SHARE * phase_seconds
    adaptive = PacedRun(options, folder / "adaptive", grace="adaptive", grace_seconds=most)
    first = adaptive.result()
    fixed = PacedRun(options, folder / "fixed", grace_seconds=adaptive.usual_grace_seconds())
    second = fixed.result()
    wrong = [*adaptive.differences(), *fixed.differences()]
    return {
        "clock": "real",
        "phases": options.phases,
        "adaptive": first,
        "fixed": second,
        "digest_equal": not wrong,
    }


class PacedRun:
    """A run whose workers are threads, each as fast as its machine."""

    def __init__(self, options: argparse.Namespace, folder: Path, **outer: Any):
        self._options, self._folder = options, folder
        self._config = config_of(options, outer)
        self._run, _ = create_or_open(folder, self._config)
        self._world = World(
            seed=options.seed,
            phases=options.phases,
            phase_seconds=options.steps * options.step_seconds,
            spread=options.spread,
            between=options.between,
        )
        self._spells = self._world.slow_spells()
        self._began_seconds = 0.0
        self._path_seconds: list[float] = []
        self._stepped: dict[str, list[float]] = {}
        self._errors: list[BaseException] = []

    def result(self) -> dict[str, Any]:
        """Does the run, and tells how it went."""
        setup = worker_of(self._run, "setup", ALL_KINDS, NullCallbacks())
        while len(self._run.ledger.facts.modules_at(MODULAR, 0)) < self._num_modules:
            assert setup.run_once()
        threads = [
            threading.Thread(target=self._work, args=(number,)) for number in range(NUM_WORKERS)
        ]
        with one_snapshot_at_a_time():
            self._began_seconds = time.monotonic()
            for thread in threads:
                thread.start()
            self._step()
            for thread in threads:
                thread.join()
        if self._errors:
            raise self._errors[0]
        waits = [
            after - before
            for times in self._stepped.values()
            for before, after in itertools.pairwise([0.0, *times])
        ]
        usual = statistics.median(self._path_seconds)
        seconds = max(map(max, self._stepped.values())) / self._options.phases
        late = self._run.ledger.quorums.late(MODULAR)
        return {
            "grace_seconds": round(self._config.outer.grace_seconds, 3),
            "phase_seconds": round(seconds, 3),
            "of_median": round(seconds / usual, 3),
            "steps_over_1.2": round(sum(wait > 1.2 * usual for wait in waits) / len(waits), 3),
            "late": sum(map(len, late.values())),
            "contributions": self._run.ledger.quorums.num_taken(MODULAR),
        }

    def usual_grace_seconds(self) -> float:
        """That the ledger says was decided, in the median of the steps that needed one."""
        decided = self._run.ledger.quorums.graces(MODULAR).values()
        known = [each.grace.seconds for each in decided if each.grace.median_seconds is not None]
        if not known:
            raise SystemExit("No step had to wait for a late path: take more phases (--phases).")
        return statistics.median(known)

    def differences(self) -> list[str]:
        """From the run done once more."""
        return differences(self._run)

    @property
    def _num_modules(self) -> int:
        return len(self._config.topology.modules)

    def _work(self, number: int) -> None:
        """A worker that trains until the last path is done."""
        try:
            run = open_run(self._folder)
            run.programs = self._run.programs  # compiled already: pretraining took the same steps
            pace = Pace(self, number)
            worker = worker_of(run, f"worker {number}", ("train",), pace)
            while not self._is_over() and not self._errors:
                if not worker.run_once():
                    time.sleep(LOOK_SECONDS)
            run.ledger.close()
        except BaseException as error:
            self._errors.append(error)
            raise

    def _step(self) -> None:
        """Everything but training, which takes next to no time."""
        kinds: tuple[Kind, ...] = tuple(kind for kind in ALL_KINDS if kind != "train")
        worker = worker_of(self._run, "executor", kinds, Notes(self))
        while not self._is_over() and not self._errors:
            if not worker.run_once():
                time.sleep(LOOK_SECONDS)

    def _is_over(self) -> bool:
        steps = [len(times) for times in self._stepped.values()]
        return len(steps) == self._num_modules and min(steps) == self._options.phases

    def now_seconds(self) -> float:
        """Since training began."""
        return time.monotonic() - self._began_seconds

    def step_seconds(self, number: int) -> float:
        """That a step of a worker takes which begins now."""
        machine = random.Random(f"machine {self._options.seed} {number}").random()
        seconds = self._options.step_seconds * (1 + self._options.spread * machine)
        now = self.now_seconds()
        is_slow = number == NUM_WORKERS - 1 and any(a <= now < b for a, b in self._spells)
        return seconds * SLOWER if is_slow else seconds

    def note(self, facts: list[Fact]) -> None:
        """How long a path trained, and when a module stepped."""
        for fact in facts:
            if isinstance(fact, PathTrained):
                self._path_seconds.append(fact.seconds)
            elif isinstance(fact, ModuleReady) and fact.arm == MODULAR:
                self._stepped.setdefault(str(fact.module), []).append(self.now_seconds())


@contextlib.contextmanager
def one_snapshot_at_a_time() -> Generator[None]:
    """Orbax mixes up what two threads of a process save; workers are processes elsewhere."""
    lock = threading.Lock()

    def alone(act: Callable[..., Any]) -> Callable[..., Any]:
        def locked(*arguments: Any, **settings: Any) -> Any:
            with lock:
                return act(*arguments, **settings)

        return locked

    with (
        mock.patch.object(train, "save_snapshot", alone(train.save_snapshot)),
        mock.patch.object(phase_start, "load_snapshot", alone(phase_start.load_snapshot)),
    ):
        yield


class Notes(NullCallbacks):
    """Of what was done."""

    def __init__(self, paced_run: PacedRun):
        self._paced_run = paced_run

    def task_finished(self, claim: Claim, facts: list[Fact]) -> None:
        self._paced_run.note(facts)


class Pace(Notes):
    """Makes each step of a worker take as long as its machine needs."""

    def __init__(self, paced_run: PacedRun, number: int):
        super().__init__(paced_run)
        self._number, self._since = number, 0.0

    def task_started(self, claim: Claim) -> None:
        self._since = time.monotonic()

    def step_taken(self, claim: Claim, loss: float, tokens: int) -> None:
        seconds = self._paced_run.step_seconds(self._number)
        time.sleep(max(0.0, seconds - (time.monotonic() - self._since)))
        self._since = time.monotonic()


def config_of(options: argparse.Namespace, outer: dict[str, Any]) -> RunConfig:
    """The toy, evaluated at its end only."""
    toy = load_config(TOY)
    return dataclasses.replace(
        toy,
        phases=options.phases,
        inner=dataclasses.replace(toy.inner, steps=options.steps),
        outer=dataclasses.replace(toy.outer, quorum=QUORUM, **outer),
        evaluation=dataclasses.replace(toy.evaluation, every_phases=options.phases),
        retention=dataclasses.replace(toy.retention, snapshots=None),
        baselines=(),
        seed=options.seed,
    )


def worker_of(run: Run, name: str, kinds: tuple[Kind, ...], callbacks: NullCallbacks) -> Worker:
    """One whose lease outlasts the run."""
    return Worker(
        run,
        name,
        callbacks,
        LeaseRenewer(run.open_ledger, name, 3600.0),
        kinds=kinds,
        lease_seconds=3600.0,
    )


if __name__ == "__main__":
    sys.exit(main())
