"""One run of a storm and its workers: started, started again when they die, and in a storm each in
a process that can be made to misbehave (`misbehave.py`).
"""

import argparse
import contextlib
import dataclasses
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

from storms.places import Places
from support.fault_points import Fault
from support.wall_clock import WallClock

from dipaco.config import RunConfig
from dipaco.runs.opening import create_or_open, open_run
from dipaco.runs.run import Run
from dipaco.store.address import Address

MISBEHAVE = Path(__file__).parents[1] / "misbehave.py"
# Points of support/fault_points.py, and the kind of task in which they are passed.
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
MOST_WAITING = 3  # The next fault is not drawn before one of these has happened.
# A fault: its name, and what does it and returns whether it really happened (False: not yet).
StormFault = tuple[str, Callable[[Run], bool]]


class InTurn:
    """Faults in their order. A fault whose moment has not come waits, and lets others go first.

    Args:
      faults: endless or not.
      most: number of faults at most, or None.
    """

    def __init__(self, faults: Iterator[StormFault], most: int | None):
        self._faults = itertools.islice(faults, most)
        self._waiting: list[StormFault] = []

    def is_over(self) -> bool:
        """True if there are no more, and none waits."""
        if not self._waiting and (fault := next(self._faults, None)) is not None:
            self._waiting.append(fault)
        return not self._waiting

    def next_of(self, run: Run) -> str | None:
        """The name of the fault that was done just now, or None if none found its moment."""
        for number, (name, has_happened) in enumerate(self._waiting):
            if has_happened(run):
                del self._waiting[number]
                return name
        if len(self._waiting) < MOST_WAITING and (fault := next(self._faults, None)) is not None:
            self._waiting.append(fault)  # its turn is at the next look
        return None


@dataclasses.dataclass
class Life:
    """Begin and end of a worker's process, in seconds of the monotonic clock."""

    began: float
    ended: float | None = None


class Fleet:
    """One run, its workers, and the faults that hit them.

    Args:
      name: the run's name.
      config, config_file: the trained config and its file.
      places: its database and its store.
      options: the command line.
      clock: the library that makes wall clocks jump, or None.
    """

    def __init__(
        self,
        name: str,
        config: RunConfig,
        config_file: Path,
        places: Places,
        options: argparse.Namespace,
        clock: Path | None,
    ):
        self.folder, self.places, self.options = places.folder / name, places, options
        self.config_file, self._clock = config_file, clock
        self.folder.mkdir()
        bucket = places.bucket
        self.address = Address.parse(f"{bucket}/{name}") if bucket else Address(self.folder)
        run, _ = create_or_open(self.address, config, None, places.database)
        run.ledger.close()
        self.faults: Counter[str] = Counter()
        self.corruptions: list[str] = []  # `status` must give them as reasons in the end.
        self._hurry = self.folder / "hurry"  # once it is there, no task is paced
        self.outage_seconds = 0.0  # announced ones, of the store or the database
        self.processes: dict[str, subprocess.Popen] = {}
        self.lives: dict[str, Life] = {}  # every worker so far
        self.clocks: dict[str, WallClock] = {}
        self._markers: dict[str, Path] = {}
        self._beside: list[subprocess.Popen] = []
        self._started = 0

    def open(self) -> Run:
        return open_run(self.address, self.places.database)

    @contextlib.contextmanager
    def at_work(self) -> Generator[Run]:
        """Opens the run, and ends all processes afterwards."""
        run = self.open()
        try:
            yield run
        finally:
            self.end()
            run.ledger.close()

    def end(self) -> None:
        """Kills all processes."""
        for process in (*self.processes.values(), *self._beside):
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()

    def work(self, faults: Iterator[StormFault] | None) -> float:
        """Seconds of training, until the run is finished."""
        began: float | None = None
        in_turn = InTurn(faults or iter(()), self.options.faults)
        next_seconds = time.monotonic() + 2
        with self.at_work() as run:
            while run.ledger.queue.unfinished():
                self.keep_workers(run, is_storm=faults is not None)
                if began is None and run.ledger.queue.task_counts().get(("train", "modular")):
                    began = time.monotonic()
                is_time = began is not None and time.monotonic() > next_seconds
                if is_time and (happened := in_turn.next_of(run)) is not None:
                    self._count(happened, time.monotonic() - began)
                    next_seconds = time.monotonic() + self.options.kill_every
                if faults is not None and in_turn.is_over():
                    self._hurry.touch()
                time.sleep(0.05)
        assert began is not None
        return time.monotonic() - began

    def command(self, verb: str, *arguments: str) -> list[str]:
        """A `dipaco` command line about this run."""
        database = self.places.database
        at = ["--run", str(self.address), *(["--database", database] if database else [])]
        return [sys.executable, "-m", "dipaco.cli.main", verb, *arguments, *at]

    def misbehaving(self, orders: dict[str, object], *command: str) -> list[str]:
        """The same command line in a process that does what the request `orders` says."""
        return [sys.executable, str(MISBEHAVE), json.dumps(orders), *command[3:]]

    def _count(self, name: str, seconds: float) -> None:
        self.faults[name] += 1
        print(f"  {seconds:6.1f} s  {name}", flush=True)

    # --- workers ------------------------------------------------------------------------------

    def keep_workers(self, run: Run, *, is_storm: bool) -> None:
        """Starts a worker in the place of each that has ended. Nobody gives their tasks back."""
        for name, process in list(self.processes.items()):
            if process.poll() is None:
                continue
            del self.processes[name]
            self.lives[name].ended = time.monotonic()
            self.clocks.pop(name, None)
            marker = self._markers.pop(name, None)
            if marker is not None and marker.exists():
                self.faults[f"SIGKILL at: {marker.read_text()}"] += 1
                print(f"  worker {name} died at: {marker.read_text()}", flush=True)
            elif process.returncode not in (0, -signal.SIGKILL, -signal.SIGTERM):
                words = (self.folder / f"{name}.log").read_text()[-2000:]
                raise SystemExit(f"worker {name} ended with {process.returncode}:\n{words}")
        while len(self.processes) < self.options.workers and run.ledger.queue.unfinished():
            self._start(is_storm=is_storm)

    def _start(self, *, is_storm: bool) -> None:
        number, workers = self._started, self.options.workers
        self._started += 1
        name = f"worker-{number}"
        lease = ["--lease-seconds", str(self.options.lease_seconds)]
        words = self.command("worker", "--name", name, *lease)
        variables = {**os.environ, **self.places.machine(number % workers)}
        orders: dict[str, object] = {
            "task_seconds": self.options.task_seconds,
            "hurry": str(self._hurry),
            "machine": name,
        }
        if is_storm:
            orders["orders"] = str(self.folder / name)
            # One worker in the storm dies at a named point, one point after the other.
            most = self.options.faults
            is_over = most is not None and self.faults.total() >= most
            if self.options.named_points and not is_over and number % workers == workers - 1:
                where, kind = NAMED_POINTS[(number // workers) % len(NAMED_POINTS)]
                self._markers[name] = self.folder / f"{name}.fired"
                orders["fault"] = Fault(where, kind)._asdict()
                orders["marker"] = str(self._markers[name])
            if self._clock is not None:
                self.clocks[name] = WallClock(self._clock, self.folder / f"{name}.clock")
                variables |= self.clocks[name].environment
        self.lives[name] = Life(time.monotonic())
        self.processes[name] = self._spawn(name, self.misbehaving(orders, *words), variables)

    def start_beside(self, name: str, words: list[str], machine: int = 0) -> subprocess.Popen:
        """Starts another process than a worker, which is not started again and ends with the
        storm.
        """
        process = self._spawn(name, words, {**os.environ, **self.places.machine(machine)})
        self._beside.append(process)
        return process

    def _spawn(self, name: str, words: list[str], variables: dict[str, str]) -> subprocess.Popen:
        with (self.folder / f"{name}.log").open("a") as log:
            return subprocess.Popen(words, stdout=log, stderr=log, env=variables)

    @property
    def has_clocks(self) -> bool:
        """True if wall clocks can be made to jump."""
        return self._clock is not None

    def is_doomed(self, name: str) -> bool:
        """True if the worker will die at a named point."""
        return name in self._markers

    # --- bytes --------------------------------------------------------------------------------

    def content(self, name: str) -> bytes | None:
        """The bytes of an object, or None."""
        if (remote := self.address.remote) is not None:
            return remote.read(name)
        file = self.folder / name
        return file.read_bytes() if file.exists() else None

    def replace(self, name: str, content: bytes | None) -> None:
        """Changes or deletes an object without telling the workers."""
        if (remote := self.address.remote) is not None:
            remote.delete(name) if content is None else remote.write(name, content)
            self._forget_copies(name)
        elif content is None:
            (self.folder / name).unlink()
        else:
            (self.folder / name).write_bytes(content)

    def delete_folder(self, name: str) -> bool:
        """Deletes a folder. True if nothing is left."""
        if (remote := self.address.remote) is not None:
            remote.delete_folder(name)
            self._forget_copies(name)
            return not remote.names(name)
        shutil.rmtree(self.folder / name, ignore_errors=True)
        return not (self.folder / name).exists()

    def _forget_copies(self, name: str) -> None:
        """No machine has one, or the loss would not be one."""
        run = self.address.folder.name
        for copy in self.places.folder.glob(f"machine-*/runs/{run}/{name}"):
            shutil.rmtree(copy) if copy.is_dir() else copy.unlink(missing_ok=True)
