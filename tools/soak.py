"""Endurance: a small run for an hour, with kills, a server and a dashboard beside it. Quantities
that must not grow in a long run are measured all the time, and must be flat after the first
quarter.

    python tools/soak.py --hours 1
    python tools/soak.py --minutes 5 --workers 2 --experts 2
    python tools/soak.py --hours 8 --database postgresql --store s3     both started by the tool

A 4x4 run by paced workers, of which one is killed in each `--kill-every` seconds, at random, and
another started in its place. One worker is never killed. From its first release on, `dipaco serve`
answers one short request a second, and `dipaco dashboard` is asked for the newest changes as often
as an open page does. Each is looked at a few hundred times:

- memory (resident set) and open descriptors of the lasting worker, the server and the dashboard;
- connections to the database (0 with SQLite);
- bytes and files of what the run stores, bytes of its ledger and of everything on the disk.

`growth` of each is how much the line that fits best after the first quarter rises until the end, as
a share of the median. Memory, descriptors and connections must not grow by more than `--tolerance`.
A run records something at every phase, so the ledger and the disk (events, logs) do grow. There,
and in the store, the amount that one phase adds must not grow. In the end the newest modules are
compared, bit for bit, with Algorithm 1's (`replay.py`). The last line is one JSON object. The exit
code is 1 if something is not flat, was answered wrongly or has other bits.
"""

import argparse
import contextlib
import itertools
import json
import math
import os
import random
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Generator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from goodput import kill_moments
from storms.config import write_config
from storms.fleet import Fleet
from storms.places import places
from support.command_line import parser_of
from support.scratch import scratch

from dipaco import trees
from dipaco.config import MODULAR
from dipaco.overrides import load_config
from dipaco.runs.run import Run
from dipaco.workers.replay import replay

LOOK_SECONDS = 0.2
LOOKS = 300  # measurements of everything
PAGE_BYTES = 4096
PROMPT = "the of and a to in"


class Look(NamedTuple):
    """Everything that is measured, at one moment."""

    seconds: float
    phases: float  # phases done by paths, on average
    values: dict[str, float]


def main() -> int:
    options = parse()
    with scratch(options.folder, "soak-") as folder, places(options, folder) as at:
        answer = soak(options, at)
    print(json.dumps(answer))
    return 0 if answer["digest_equal"] and not answer["not_flat"] and not answer["wrong"] else 1


def parse() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--minutes", type=float, help="in place of hours")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--experts", type=int, default=4, help="of each level: K x K paths")
    parser.add_argument("--task-seconds", type=float, default=2.0, help="of a path's phase")
    parser.add_argument("--lease-seconds", type=float, default=5.0)
    parser.add_argument("--kill-every", type=float, default=30.0, metavar="S")
    parser.add_argument("--tolerance", type=float, default=0.1, help="of growth")
    parser.add_argument("--alone", action="store_true", help="no server and no dashboard")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--database", help="as of storm.py; else SQLite")
    parser.add_argument("--store", help="as of storm.py; else folders")
    parser.add_argument("--folder", help="where the run is put, and removed afterwards")
    options = parser.parse_args()
    options.seconds = 60 * options.minutes if options.minutes else 3600 * options.hours
    options.named_points, options.faults = False, None
    return options


def soak(options: argparse.Namespace, at: Any) -> dict[str, Any]:
    paths = options.experts**2
    phases = 4 + math.ceil(options.seconds * options.workers / (paths * options.task_seconds))
    file = write_config(
        at.folder / "config.py", experts=options.experts, phases=phases, steps=2, documents=40,
        every_phases=max(2, phases // 8), settings=["retention.modules=4"],
    )  # fmt: skip
    fleet, looks = Fleet("soak", load_config(file, []), file, at, options, None), []
    rng, kills = random.Random(options.seed), 0
    moments = kill_moments(options, rng)
    with fleet.at_work() as run, contextlib.ExitStack() as stack:
        beside = Beside(fleet)
        while not run.ledger.queue.task_counts().get(("train", MODULAR)):
            fleet.keep_workers(run, is_storm=False)
            time.sleep(LOOK_SECONDS)
        lasting, began, moment = next(iter(fleet.processes)), time.monotonic(), next(moments)
        while (seconds := time.monotonic() - began) < options.seconds:
            fleet.keep_workers(run, is_storm=False)
            if not options.alone and not beside.processes and has_release(run):
                stack.enter_context(beside.at_work())
            if seconds >= len(looks) * options.seconds / LOOKS:
                own = {"worker": fleet.processes[lasting].pid} | beside.that_answer
                looks.append(Look(seconds, phases_of(run, paths), measured(fleet, run, own)))
            others = [name for name in fleet.processes if name != lasting]
            if seconds > moment and others:
                victim = fleet.processes[rng.choice(others)]
                victim.kill()
                victim.wait()
                kills, moment = kills + 1, next(moments)
            time.sleep(LOOK_SECONDS)
        wrong = beside.wrong
        stack.close()
        fleet.end()
        reached = run.phases_reached
        return {
            "minutes": round(options.seconds / 60, 1), "workers": options.workers, "paths": paths,
            "phases": reached, "kills": kills, "answers": beside.answers, "wrong": wrong[:5],
            **verdict(looks, options.tolerance), "digest_equal": is_equal(run, reached),
        }  # fmt: skip


def has_release(run: Run) -> bool:
    """True if there is something to serve."""
    return any(arm == MODULAR for arm, _ in run.ledger.facts.evaluated())


def phases_of(run: Run, paths: int) -> float:
    return run.ledger.progress.training_totals(MODULAR).path_phases / paths


# --- measurements ---------------------------------------------------------------------------------


def measured(fleet: Fleet, run: Run, processes: dict[str, int]) -> dict[str, float]:
    """Everything, at this moment."""
    values: dict[str, float] = {}
    for name, process in processes.items():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
            values[f"{name} memory"] = pages * PAGE_BYTES
            values[f"{name} descriptors"] = len(list(Path(f"/proc/{process}/fd").iterdir()))
    # Not `rglob`, which fails where a folder is deleted meanwhile.
    found = ((Path(folder), names) for folder, _, names in os.walk(fleet.folder))
    files = {folder / name: size_of(folder / name) for folder, names in found for name in names}
    of_ledger = {file for file in files if file.name.startswith("ledger.sqlite")}
    stored = [file for file in files if {"objects", "snapshots"} & set(file.parts)]
    values |= {
        "store": sum(files[file] for file in stored),
        "files": len(stored),
        "disk": sum(files.values()),
        "ledger": sum(files[file] for file in of_ledger),
    }
    if run.ledger._database.is_remote:
        ((connections,),) = run.ledger.select("SELECT count(*) FROM pg_stat_activity")
        ((num_bytes,),) = run.ledger.select("SELECT pg_database_size(current_database())")
        values |= {"connections": connections, "ledger": num_bytes}
    return values


def size_of(file: Path) -> int:
    """Size of a file, or 0 if it is gone meanwhile."""
    with contextlib.suppress(FileNotFoundError):
        return file.stat().st_size
    return 0


BY_PHASE = ("ledger", "disk", "store", "files")


def verdict(looks: list[Look], tolerance: float) -> dict[str, Any]:
    """The growth of everything after the first quarter, and names that are not flat."""
    growths, levels = {}, {}
    for name in sorted({name for look in looks for name in look.values}):
        points = [
            (look.seconds, look.phases, look.values[name]) for look in looks if name in look.values
        ]
        later = points[len(points) // 4 :]
        seconds, phases, values = map(np.array, zip(*later, strict=True))
        levels[name] = round(float(np.median(values)), 1)
        by_phase = name in BY_PHASE
        growths[name] = growth_of_slope(phases, values) if by_phase else growth(seconds, values)
        what = "what a phase adds grows by" if by_phase else "grows by"
        print(f"{name:22} {levels[name]:14,.0f}  {what} {growths[name]:+.1%}", flush=True)
    return {
        "level": levels,
        "growth": {name: round(value, 4) for name, value in growths.items()},
        "not_flat": [name for name, value in growths.items() if value > tolerance],
    }


def growth(at: np.ndarray, values: np.ndarray) -> float:
    """Rise of the best-fitting line from first to last, as a share of the median."""
    if len(at) < 2 or at[-1] == at[0]:
        return 0.0
    slope, _ = np.polyfit(at - at[0], values, 1)
    return float(slope * (at[-1] - at[0]) / max(np.median(values), 1.0))


def growth_of_slope(phases: np.ndarray, values: np.ndarray) -> float:
    """Difference between the amounts that a phase adds in the second and the first half, as a share
    of the level. A run that adds as much at every phase is flat. A run that adds more and more is
    not.
    """
    middle = len(phases) // 2
    if middle < 2 or phases[middle - 1] == phases[0] or phases[-1] == phases[middle]:
        return 0.0
    slopes = [
        np.polyfit(phases[half], values[half], 1)[0]
        for half in (slice(0, middle), slice(middle, None))
    ]
    return float((slopes[1] - slopes[0]) * (phases[-1] - phases[middle]) / np.median(values))


def is_equal(run: Run, reached: int) -> bool:
    """True if the newest modules, which depend on everything before, equal Algorithm 1's."""
    modules = next(itertools.islice(replay(run), reached - 1, None))
    return all(
        trees.digest(modules[module]) == trees.digest(run.parameters(MODULAR, module, reached))
        for module in run.config.topology.modules
    )


# --- beside it ------------------------------------------------------------------------------------


class Beside:
    """A server of the run and its dashboard, each with one client."""

    def __init__(self, fleet: Fleet):
        self._fleet = fleet
        self.processes: dict[str, int] = {}
        self.answers = {"server": 0, "dashboard": 0}
        self.wrong: list[str] = []
        self._is_over = threading.Event()

    @property
    def that_answer(self) -> dict[str, int]:
        """The processes that have started."""
        return {name: self.processes[name] for name, count in self.answers.items() if count}

    @contextlib.contextmanager
    def at_work(self) -> Generator[None]:
        clients = []
        for name, verb in (("server", "serve"), ("dashboard", "dashboard")):
            command = self._fleet.command(verb, "--port", "0")
            if "--database" in command:
                command = command[: command.index("--database")]
            process = self._fleet.start_beside(name, command)
            self.processes[name] = process.pid
            clients.append(threading.Thread(target=self._ask, args=(name, process)))
            clients[-1].start()
        try:
            yield
        finally:
            self._is_over.set()
            for client in clients:
                client.join()

    def _ask(self, name: str, process: subprocess.Popen) -> None:
        log = self._fleet.folder / f"{name}.log"
        while not self._is_over.wait(1.0):
            found = re.search(r"http://[^\s/]+\S*", log.read_text())
            if process.poll() is not None:
                self.wrong.append(
                    f"{name} ended with {process.returncode}: {log.read_text()[-500:]}"
                )
                return
            if found is None:
                continue  # it is not ready yet
            try:
                self._one(name, found[0])
                self.answers[name] += 1
            except (OSError, ValueError) as error:
                self.wrong.append(f"{name}: {error}")

    def _one(self, name: str, address: str) -> None:
        base, _, key = address.partition("?")
        if name == "dashboard":
            request = urllib.request.Request(f"{base.rstrip('/')}/recording?{key}")
        else:
            body = json.dumps({"model": "storm", "prompt": PROMPT, "max_tokens": 8}).encode()
            headers = {"Content-Type": "application/json"}
            request = urllib.request.Request(f"{base.rstrip('/')}/v1/completions", body, headers)
        with urllib.request.urlopen(request, timeout=120) as answer:
            answer.read()


if __name__ == "__main__":
    sys.exit(main())
