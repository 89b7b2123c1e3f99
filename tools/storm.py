"""A storm: a real training by real processes that are killed, stopped and lied to; the result must
be, bit for bit, that of a run in which nothing happened.

    python tools/storm.py --minutes 1
    python tools/storm.py --minutes 10 --workers 4 --kill-every 60 --database postgresql://HOST/NAME

First the fault-free run, by as many workers; then the same run again in the storm. Faults come in
turn, each once and then at random: SIGKILL of a worker at a named point (claim, inner steps,
snapshot, between save and record, inside record, before sweep, ...), SIGKILL at random, of all at
once, SIGTERM (which hands the phase on), SIGSTOP for longer than a lease and then SIGCONT (the late
commit must be refused), a flipped byte, a cut, a deleted object, a deleted snapshot. A fault counts
only when it is proved: the process is gone, or the file was changed.

Then a checker that knows nothing of the scheduler compares what was recorded with the plan: the
digest of every module at every phase, every path's every phase once and with the right rows, and
every module made of exactly its paths' contributions.

`goodput` is tokens committed per second of training, over that of the fault-free run, start-up of
processes and lease waits included; `participation` the share of live workers' time in tasks that
were committed. The last line is one JSON object.
"""

import argparse
import contextlib
import itertools
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

from dipaco.config import RunConfig
from dipaco.overrides import load_config
from dipaco.runs.run import Run, create_or_open, open_run

FAULTY = Path(__file__).parents[1] / "tests" / "system" / "faulty.py"
CONFIG = '''"""2x2 paths on the toy corpus, for a storm."""

from dipaco.config import BaseSettings, EvaluationSettings, RunConfig
from dipaco.data.config import DataConfig
from dipaco.inner.config import InnerSettings
from dipaco.model.config import ModelConfig
from dipaco.topology import Level, Topology


def run() -> RunConfig:
    return RunConfig(
        name="storm",
        model=ModelConfig(
            vocab_size=300, d_model={d_model}, num_layers=2, num_heads=2, d_ff={d_ff}, max_length=64
        ),
        topology=Topology(
            levels=(
                Level(name="early", parts=("embed", "block_00"), experts=2),
                Level(name="late", parts=("block_01", "final_norm", "head"), experts=2),
            )
        ),
        data=DataConfig(
            sources=("toy:?clusters=4&documents=400&words=60",),
            vocab_size=300,
            length=64,
            valid_fraction=0.1,
            router_fraction=0.2,
            processes=1,
        ),
        base=BaseSettings(steps=4, steps_per_phase=2),
        phases={phases},
        inner=InnerSettings(steps={steps}, batch_size=16, learning_rate=3e-3, warmup_steps=1),
        evaluation=EvaluationSettings(batch_size=16, every_phases={phases}),
        baselines=(),
    )
'''
# Points of tests/system/driver.py, and the kind of task in which they are passed.
NAMED_POINTS = (
    ("after claim", "train"),
    ("inside steps", "train"),
    ("inside snapshot", "train"),
    ("before record", "train"),
    ("inside record", "train"),
    ("after record", "train"),
    ("after claim", "outer"),
    ("before save", "outer"),
    ("inside save", "outer"),
    ("before record", "outer"),
    ("before sweep", "outer"),
)


def main() -> None:
    options = parse()
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="storm-") as folder:
        place = Path(folder)
        config_file = place / "config.py"
        config_file.write_text(
            CONFIG.format(
                phases=options.phases, steps=options.steps, d_model=options.width,
                d_ff=3 * options.width // 2,
            )
        )  # fmt: skip
        config = load_config(config_file, [])
        calm = Weather(place / "calm", config, options)
        calm_seconds = calm.work(faults=None)
        storm = Weather(place / "storm", config, options)
        storm_seconds = storm.work(faults=random.Random(options.seed))
        print(report(calm, storm, calm_seconds, storm_seconds))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=1.0, help="about how long each run takes")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument(
        "--kill-every", type=float, default=6.0, metavar="S", help="a fault every S"
    )
    parser.add_argument("--faults", type=int, help="at most so many; then the wind drops")
    parser.add_argument("--lease-seconds", type=float, default=4.0)
    parser.add_argument("--phases", type=int, help="of training; else as fits the minutes")
    parser.add_argument("--steps", type=int, default=20, help="inner steps of a phase")
    parser.add_argument("--width", type=int, default=32, help="d_model")
    parser.add_argument("--seed", type=int, default=0, help="of the random faults")
    parser.add_argument("--database", help="postgresql://... or env:VARIABLE; else SQLite")
    parser.add_argument("--folder", help="where the runs are put, and removed afterwards")
    options = parser.parse_args()
    if options.phases is None:
        options.phases = max(3, round(options.minutes * 10))
    return options


class Weather:
    """One run, its workers, and what is done to them."""

    def __init__(self, folder: Path, config: RunConfig, options: argparse.Namespace):
        self.folder, self.options = folder, options
        run, _ = create_or_open(folder, config, None, options.database)
        run.ledger.close()
        self.faults: Counter[str] = Counter()
        self.outage_seconds = 0.0
        self._processes: dict[str, subprocess.Popen] = {}
        self._started = 0
        self._markers: dict[str, Path] = {}

    def open(self) -> Run:
        return open_run(self.folder, self.options.database)

    def work(self, faults: random.Random | None) -> float:
        """Seconds of training, until the run is finished."""
        run = self.open()
        began: float | None = None
        to_come = self._plan_of_faults(faults) if faults else iter(())
        to_come = itertools.islice(to_come, self.options.faults)
        next_fault, fault = time.monotonic() + 2, None
        try:
            while run.ledger.unfinished():
                self._keep_workers(run, faults)
                counts = run.ledger.task_counts().get(("train", "modular"))
                if counts and began is None:
                    began = time.monotonic()
                if faults and began is not None and time.monotonic() > next_fault:
                    fault = fault or next(to_come, None)
                    name, inject = fault or ("", lambda _: False)
                    if inject(run):  # else there is nothing to do it to yet
                        self.faults[name] += 1
                        print(f"  {time.monotonic() - began:6.1f} s  {name}", flush=True)
                        next_fault, fault = time.monotonic() + self.options.kill_every, None
                time.sleep(0.05)
            assert began is not None
            return time.monotonic() - began
        finally:
            for process in self._processes.values():
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGCONT)
                    process.kill()
                process.wait()
            run.ledger.close()

    # --- workers ------------------------------------------------------------------------------

    def _keep_workers(self, run: Run, faults: random.Random | None) -> None:
        for name, process in list(self._processes.items()):
            if process.poll() is None:
                continue
            del self._processes[name]
            run.ledger.queue.give_back_of(name)  # as the supervisor of `train --workers` does
            marker = self._markers.pop(name, None)
            if marker is not None and marker.exists():
                self.faults[f"SIGKILL at: {marker.read_text()}"] += 1
                print(f"  worker {name} died at: {marker.read_text()}", flush=True)
            elif process.returncode not in (0, -signal.SIGKILL, -signal.SIGTERM):
                words = (self.folder / f"{name}.log").read_text()[-2000:]
                raise SystemExit(f"worker {name} ended with {process.returncode}:\n{words}")
        points = list(NAMED_POINTS)
        while len(self._processes) < self.options.workers and run.ledger.unfinished():
            number = self._started
            self._started += 1
            name = f"worker-{number}"
            command = ["worker", "--run", str(self.folder), "--name", name]
            command += ["--lease-seconds", str(self.options.lease_seconds)]
            if self.options.database:
                command += ["--database", self.options.database]
            words = [sys.executable, "-m", "dipaco.cli.main", *command]
            # One worker in the storm carries a fault of its own, one named point after the other.
            most = self.options.faults
            is_over = most is not None and self.faults.total() >= most
            if faults and not is_over and number % self.options.workers == self.options.workers - 1:
                where, kind = points[(number // self.options.workers) % len(points)]
                self._markers[name] = self.folder / f"{name}.fired"
                fault = {
                    "where": where, "kind": kind, "nth": 1, "number": int(signal.SIGKILL),
                    "marker": str(self._markers[name]),
                }  # fmt: skip
                words = [sys.executable, str(FAULTY), json.dumps(fault), *command]
            with (self.folder / f"{name}.log").open("a") as log:
                self._processes[name] = subprocess.Popen(words, stdout=log, stderr=log)

    # --- faults -------------------------------------------------------------------------------

    def _plan_of_faults(self, dice: random.Random) -> Iterator[tuple[str, Callable[[Run], bool]]]:
        kinds: list[tuple[str, Callable[[Run], bool]]] = [
            ("SIGKILL", lambda run: self._signal(dice, run, signal.SIGKILL)),
            ("flipped byte", lambda run: self._spoil(dice, run, flip)),
            ("SIGTERM", lambda run: self._signal(dice, run, signal.SIGTERM)),
            ("deleted object", lambda run: self._spoil(dice, run, Path.unlink)),
            ("SIGSTOP past the lease", lambda run: self._stop_past_lease(dice, run)),
            ("cut object", lambda run: self._spoil(dice, run, cut)),
            ("deleted newest snapshot", self._delete_snapshot),
            ("SIGKILL of all at once", lambda run: self._kill_all()),
        ]
        yield from kinds
        while True:
            yield dice.choice(kinds[:-1])

    def _signal(self, dice: random.Random, run: Run, number: int) -> bool:
        """To a worker in the middle of a task."""
        held = [h.worker for h in run.ledger.queue.held() if h.worker in self._processes]
        if not held:
            return False
        process = self._processes[dice.choice(held)]
        process.send_signal(number)
        process.wait(timeout=60)
        return process.returncode == (-number if number == signal.SIGKILL else 0)

    def _kill_all(self) -> bool:
        for process in self._processes.values():
            process.kill()
        return all(process.wait() == -signal.SIGKILL for process in self._processes.values())

    def _stop_past_lease(self, dice: random.Random, run: Run) -> bool:
        """A worker that holds a task is silent for two leases; others take it over meanwhile."""
        held = [h for h in run.ledger.queue.held() if h.worker in self._processes]
        if not held:
            return False
        stopped = dice.choice(held)
        process = self._processes[stopped.worker]
        process.send_signal(signal.SIGSTOP)
        until = time.monotonic() + 2 * self.options.lease_seconds
        while time.monotonic() < until:
            time.sleep(0.2)
            run.ledger.queue.reap()
        process.send_signal(signal.SIGCONT)
        still = {(h.worker, h.attempt, h.task) for h in run.ledger.queue.held()}
        return (stopped.worker, stopped.attempt, stopped.task) not in still

    def _spoil(self, dice: random.Random, run: Run, spoil: Callable[[Path], object]) -> bool:
        """A contribution that is still to be averaged, or a module that paths are to start from."""
        arm, names = run.plan.arm("modular"), []
        for phase in range(arm.phases):
            done = run.ledger.receipts_at("modular", phase + 1)
            for module in set(arm.topology.modules) - done.keys():
                arrivals = run.ledger.arrivals("modular", module, phase)
                names += [arrival.message.name for arrival in arrivals]
                if not arrivals and module in run.ledger.modules_at("modular", phase):
                    names.append(run.ledger.module("modular", module, phase).parameters.name)
        if not names:
            return False
        file = self.folder / dice.choice(sorted(names))
        with contextlib.suppress(FileNotFoundError):
            before = file.read_bytes()
            spoil(file)
            return not file.exists() or file.read_bytes() != before
        return False

    def _delete_snapshot(self, run: Run) -> bool:
        import shutil

        newest = [row for row in run.ledger.newest_trained() if row["arm"] == "modular"]
        if not newest:
            return False
        row = newest[0]
        snapshot = run.ledger.snapshot("modular", row["path"], row["phase"])
        shutil.rmtree(self.folder / snapshot.receipt.name, ignore_errors=True)
        return not (self.folder / snapshot.receipt.name).exists()


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-7])


# --- the checker ------------------------------------------------------------------------------


def digests(run: Run) -> dict[str, str]:
    """Of every module at every phase."""
    arm = run.plan.arm("modular")
    return {
        f"{module} at {phase}": receipt.digest
        for phase in range(arm.phases + 1)
        for module, receipt in run.ledger.receipts_at("modular", phase).items()
    }


def rows_lost_and_twice(run: Run) -> tuple[int, int]:
    """Rows of text that the plan says and the records do not have, and the other way round.

    Knows nothing of tasks: every path must have gone through every phase, to the step that the
    plan says, and every module must have had one contribution of each of its paths, no other.
    """
    arm, batch = run.plan.arm("modular"), run.config.inner.batch_size
    lost = twice = 0
    losses = run.ledger.losses("modular")
    for path in range(arm.topology.num_paths):
        planned, recorded = arm.total_steps, len(losses.get(path, []))
        lost += max(0, planned - recorded) * batch
        twice += max(0, recorded - planned) * batch
        for phase in range(arm.phases):
            step = run.ledger.snapshot("modular", path, phase).step
            lost += abs(step - arm.steps_before(phase + 1)) * batch
    rows = run.config.inner.steps * batch
    for module in arm.topology.modules:
        for phase in range(arm.phases):
            paths = Counter(a.path for a in run.ledger.arrivals("modular", module, phase))
            expected = Counter(arm.topology.paths_through(module))
            lost += (expected - paths).total() * rows
            twice += (paths - expected).total() * rows
    return lost, twice


def report(calm: Weather, storm: Weather, calm_seconds: float, storm_seconds: float) -> str:
    """What a person reads; the last line is JSON."""
    with closing(calm.open()) as there, closing(storm.open()) as here:
        is_equal = digests(there) == digests(here)
        lost, twice = rows_lost_and_twice(here)
        tokens = here.ledger.training_totals("modular")["tokens"]
        members = here.ledger.roster.members()
        refusals = len(here.ledger.mends.refusals())
    live = sum(member.live_seconds for member in members)
    committed = sum(member.committed_seconds for member in members)
    goodput = calm_seconds / storm_seconds
    answer: dict[str, Any] = {
        "digest_equal": is_equal,
        "goodput": round(goodput, 3),
        "participation": round(committed / max(live, 1e-9), 3),
        "faults": dict(storm.faults),
        "documents_lost": lost,
        "documents_twice": twice,
        "refusals": refusals,
        "tokens": tokens,
        "calm_seconds": round(calm_seconds, 1),
        "storm_seconds": round(storm_seconds, 1),
    }
    lines = [f"{number:4} x {name}" for name, number in sorted(storm.faults.items())]
    lines.append(
        f"{storm.faults.total()} faults in {storm_seconds:.0f} s; calm {calm_seconds:.0f} s; "
        f"{len(members)} workers came and went; {refusals} objects were made again"
    )
    return "\n".join([*lines, json.dumps(answer)])


@contextlib.contextmanager
def closing(run: Run) -> Generator[Run]:
    try:
        yield run
    finally:
        run.ledger.close()


if __name__ == "__main__":
    main()
