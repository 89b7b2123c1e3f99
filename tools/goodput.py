"""Measures the cost of preemption: a fleet's work while machines are killed, over its possible
work.

    python tools/goodput.py --minutes 10 --kill-every 120 --pairs 3
    python tools/goodput.py --minutes 10 --kill-every 12 --pairs 3

A task that trains a path through a phase takes `--task-seconds` from the claim to the record, on
any machine: the model is small, and a worker that is done early sleeps. So a few cores hold many
machines, and no machine does the work of one that died. A pair is a training without kills and one
with: SIGKILL to a worker that trains, at a random moment of every `--kill-every` seconds. A new
process of another name is started in its place. Nobody gives its task back: the lease must end.

`goodput` divides the tasks recorded in `--minutes` of training by the number that the living
machines could have recorded: one in `--task-seconds` for each, from the start of its process to its
death. Lost work, leases, starting processes, outer steps and idle workers all lower it. Tasks in
hand when the time is over count on neither side. `participation` is the share of the workers' own
time, from joining the run to the last heartbeat, that went into recorded tasks. Beside them stand
three means over the kills. `lost_seconds` is the worker's time in its task, `start_seconds` the
time until the process in its place has joined, and `wait_seconds` the time until another worker has
the task.

Every module at every phase that was reached is then compared with Algorithm 1 (`replay.py`). The
last line is one JSON object, with medians of goodput and participation over the pairs.
"""

import argparse
import contextlib
import dataclasses
import json
import math
import random
import signal
import statistics
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from storms.config import write_config
from storms.fleet import Fleet
from storms.places import Places, places
from support.command_line import parser_of
from support.rounds import median_and_interval
from support.scratch import scratch

from dipaco.config import MODULAR
from dipaco.control.planning.tasks import Task
from dipaco.overrides import load_config
from dipaco.runs.run import Run
from dipaco.workers.replay import differences

LOOK_SECONDS = 0.1


def main() -> None:
    options = parse()
    measured: dict[bool, list[Measured]] = {False: [], True: []}
    with scratch(options.folder, "goodput-") as folder, places(options, folder) as at:
        for pair in range(options.pairs):
            for is_killing in (False, True):
                name = f"{'killed' if is_killing else 'calm'}-{pair}"
                one = measure(options, at, name, is_killing, random.Random(options.seed + pair))
                measured[is_killing].append(one)
                print(f"{name:9} {one.line()}", flush=True)
    print(json.dumps(report(options, measured)))


def parse() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="of training, each run")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--experts", type=int, default=8, help="of each level: K x K paths")
    parser.add_argument("--task-seconds", type=float, default=10.0)
    parser.add_argument("--lease-seconds", type=float, default=10.0)
    parser.add_argument("--kill-every", type=float, default=120.0, metavar="S")
    parser.add_argument("--seed", type=int, default=0, help="of the moments, and of the victims")
    parser.add_argument("--database", help="as of storm.py; else SQLite")
    parser.add_argument("--store", help="as of storm.py; else folders")
    parser.add_argument("--folder", help="where the runs are put, and removed afterwards")
    options = parser.parse_args()
    options.named_points, options.faults = False, None
    if options.kill_every < LOOK_SECONDS or options.minutes <= 0:
        parser.error("--kill-every and --minutes must be longer than a look")
    return options


@dataclasses.dataclass
class Measured:
    """One run."""

    goodput: float
    participation: float
    lost_seconds: list[float]  # one for each kill
    start_seconds: list[float]
    wait_seconds: list[float]
    is_equal: bool
    phases: int  # the phase that all modules reached

    def line(self) -> str:
        """For a person."""
        words = f"goodput {self.goodput:.3f}, participation {self.participation:.3f}"
        if self.lost_seconds:
            words += (
                f", {len(self.lost_seconds)} kills: {mean(self.lost_seconds):.1f} s of work lost, "
                f"{mean(self.start_seconds):.1f} s to start again, "
                f"{mean(self.wait_seconds):.1f} s until the task goes on"
            )
        bits = "bits of Algorithm 1" if self.is_equal else "OTHER BITS than Algorithm 1's"
        return f"{words}; {self.phases} phases with the {bits}"


def measure(
    options: argparse.Namespace, at: Places, name: str, is_killing: bool, rng: random.Random
) -> Measured:
    """Trains a new run for `options.minutes`."""
    paths, seconds = options.experts**2, 60 * options.minutes
    phases = 2 + math.ceil(seconds * options.workers / (paths * options.task_seconds))
    file = write_config(
        at.folder / f"{name}.py", experts=options.experts, phases=phases, steps=2, documents=40
    )
    fleet = Fleet(name, load_config(file, []), file, at, options, None)
    with fleet.at_work() as run:
        while not run.ledger.queue.task_counts().get(("train", MODULAR)):
            fleet.keep_workers(run, is_storm=False)
            time.sleep(LOOK_SECONDS)
        watch = Watch(options, fleet, run)
        watch.look_until(seconds, kill_moments(options, rng) if is_killing else iter(()), rng)
        return watch.measured()


def kill_moments(options: argparse.Namespace, rng: random.Random) -> Iterator[float]:
    """One in each `kill_every` seconds, at random: tasks are of one length, and a regular kill
    would meet all at the same step.
    """
    number = 0
    while True:
        yield (number + rng.random()) * options.kill_every
        number += 1


class Held(NamedTuple):
    """A claim."""

    task: Task
    worker: str
    attempt: int


class Watch:
    """Looks at a fleet at work, and kills.

    Args:
      options: of the command line.
      fleet: whose training has just begun.
      run: that it works on.
    """

    def __init__(self, options: argparse.Namespace, fleet: Fleet, run: Run):
        self._options, self._fleet, self._run = options, fleet, run
        self._began = self._now = time.monotonic()
        self._committed, self._live = self._seconds_of_members()
        self._tokens = self._tokens_recorded()
        self._since: dict[Held, float] = {}  # claims, and when they were first seen
        self._lost_seconds: list[float] = []
        self._waiting: dict[Task, float] = {}  # tasks of the killed, and when they were
        self._wait_seconds: list[float] = []
        self._joining = set[str]()
        self._start_seconds: list[float] = []

    def look_until(self, seconds: float, moments: Iterator[float], rng: random.Random) -> None:
        """Keeps the fleet at work for so long, and kills one worker at each moment."""
        moment = next(moments, math.inf)
        while (self._now - self._began) < seconds:
            before = set(self._fleet.processes)
            self._fleet.keep_workers(self._run, is_storm=False)
            self._joining |= set(self._fleet.processes) - before
            self._look()
            if self._now - self._began > moment and self._kill(rng):
                moment = next(moments)
            time.sleep(LOOK_SECONDS)
            self._now = time.monotonic()

    def _look(self) -> None:
        """Notes new members, claims, and the takers of killed workers' tasks."""
        if self._joining:
            for member in self._run.ledger.members.list():
                if member.name in self._joining:
                    self._joining.remove(member.name)
                    life = self._fleet.lives[member.name]
                    self._start_seconds.append(time.monotonic() - life.began)
        self._since = {claim: self._since.get(claim, self._now) for claim in self._held()}
        for claim in self._since:
            if claim.task in self._waiting:
                self._wait_seconds.append(time.monotonic() - self._waiting.pop(claim.task))

    def _held(self) -> list[Held]:
        """Claims of the living processes."""
        return [
            Held(held.task, held.worker, held.attempt)
            for held in self._run.ledger.queue.held()
            if held.worker in self._fleet.processes
        ]

    def _kill(self, rng: random.Random) -> bool:
        """Kills a worker that trains. False if none does."""
        training = [held for held in self._since if held.task.kind == "train"]
        if not training:
            return False
        one = rng.choice(training)
        process = self._fleet.processes[one.worker]
        process.kill()
        if process.wait() != -signal.SIGKILL:
            return False
        self._lost_seconds.append(self._now - self._since[one])
        self._waiting[one.task] = time.monotonic()
        return True

    def measured(self) -> Measured:
        """The measurement up to the last look. Ends the fleet and compares the bits."""
        in_hand = sum(self._now - since for since in self._since.values())
        committed, live = self._seconds_of_members()
        tasks = (self._tokens_recorded() - self._tokens) / self._tokens_of_a_task()
        alive_seconds = sum(
            max(0.0, min(life.ended or self._now, self._now) - max(life.began, self._began))
            for life in self._fleet.lives.values()
        )
        self._fleet.end()
        phases = self._run.phases_reached
        return Measured(
            goodput=tasks * self._options.task_seconds / (alive_seconds - in_hand),
            participation=(committed - self._committed) / (live - self._live - in_hand),
            lost_seconds=self._lost_seconds,
            start_seconds=self._start_seconds,
            wait_seconds=self._wait_seconds,
            is_equal=not differences(self._run, phases),
            phases=phases,
        )

    def _tokens_recorded(self) -> int:
        return self._run.ledger.progress.training_totals(MODULAR).tokens

    def _tokens_of_a_task(self) -> int:
        config = self._run.config
        return config.inner.steps * config.inner.batch_size * config.data.length

    def _seconds_of_members(self) -> tuple[float, float]:
        """Seconds of all workers that ever joined, in recorded tasks and in all. A dead worker
        counts until its last heartbeat.
        """
        members = self._run.ledger.members.list()
        live = [member.name in self._fleet.processes for member in members]
        return (
            sum(member.committed_seconds for member in members),
            sum(
                member.live_seconds + is_live * member.silent_seconds
                for member, is_live in zip(members, live, strict=True)
            ),
        )


def report(options: argparse.Namespace, measured: dict[bool, list[Measured]]) -> dict[str, Any]:
    """Medians, and for each kill means."""
    killed = measured[True]
    goodput, low, high = median_and_interval([one.goodput for one in killed])
    return {
        "workers": options.workers,
        "paths": options.experts**2,
        "task_seconds": options.task_seconds,
        "lease_seconds": options.lease_seconds,
        "kill_every": options.kill_every,
        "minutes": options.minutes,
        "pairs": options.pairs,
        "kills": sum(len(one.lost_seconds) for one in killed),
        "goodput": round(goodput, 3),
        "goodput_range": [round(low, 3), round(high, 3)],
        "goodput_calm": round(statistics.median(one.goodput for one in measured[False]), 3),
        "participation": round(statistics.median(one.participation for one in killed), 3),
        **{
            name: round(mean([s for one in killed for s in getattr(one, name)]), 1)
            for name in ("lost_seconds", "start_seconds", "wait_seconds")
        },
        "digest_equal": all(one.is_equal for of in measured.values() for one in of),
    }


def mean(values: list[float]) -> float:
    return statistics.fmean(values) if values else math.nan


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
