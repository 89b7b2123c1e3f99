"""Volunteers for a whole run: 2x2 paths, a backbone of each, and volunteers of unequal speed who
have *one* address each; half-way the volunteers of one path leave.

    python tools/swarm_grid.py --minutes 12
    python tools/swarm_grid.py --minutes 12 --delayed-updates both
    python tools/swarm_grid.py --phases 2 --steps 2 --batch 8 --speeds 0.1 0.1 0.2 0.2 \\
        --join-seconds 1 --away-seconds 0                                           the smallest

All are processes. A block takes volunteer N at least `--speeds`[N] seconds, and the address that it
is given is that of path N mod 4, whichever path needs it; they join `--join-seconds` apart. When
half of all steps are taken, all who serve the path of the fastest leave by Ctrl-C at once, and
`--away-seconds` later as many of the same speeds join, with addresses of other paths. No plain
worker takes part. Then plain AdamW in this process replays every path from the modules that each of
its phases began with, and compares the parameters at the end of every phase.

`idle` is the share of the volunteers' time, from the first block of each to its last, in which it
computed nothing; `idle_sampled` says what it was: a part of a step (others compute its last rows,
or it is averaged), between two phases of its path, or at no path (it moves). `phases` has of each
phase its seconds by the ledger, from the last outer step of the one before; how many times that is
of the best split (`of_best_split`: every volunteer stays at one path and never waits, and nothing
else takes time), and of all speeds spread over the paths without loss (`of_no_loss`); and whether
it was `calm`: nobody came or left. `best_split_idle` is the idle share of that best split, whose
paths do not end at the same moment.

Volunteers look about every twenty seconds, and take a move to cost as many: phases of a minute are
over before they have found their paths. The defaults give phases of more than three.

The last line is one JSON object.
"""

import argparse
import contextlib
import functools
import itertools
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from support.isolated_cache import isolated_cache
from support.scratch import scratch
from support.swarm_replay import replay, rows_lost_and_twice
from support.swarm_run import (
    Paced,
    dipaco_words,
    free_port,
    paced_by,
    share_of_computing,
    write_config,
)

from dipaco.config import MODULAR
from dipaco.runs.opening import open_run
from dipaco.runs.run import Run

SLOW = Path(__file__).with_name("swarm_slow.py")
PATHS = 4
START_SECONDS, LEAVE_SECONDS = 600.0, 60.0
LOOK_SECONDS = 0.25  # between two samples of what all do
MOVES = "needs volunteers more than path"  # as a volunteer's terminal says it
SENT_ON = "needs volunteers most, and is led at"


def main() -> None:
    options = parse()
    if options.delayed_updates != "both":
        print(json.dumps(one_run(options)))
        return
    off, on = (
        one_run(argparse.Namespace(**vars(options) | {"delayed_updates": each}))
        for each in ("off", "on")
    )
    print(json.dumps({"off": off, "on": on}))


def one_run(options: argparse.Namespace) -> dict[str, Any]:
    """Its JSON object."""
    with scratch(options.folder, "swarm-grid-") as folder:
        grid = Grid(folder, options)
        try:
            grid.run_to_the_end()
        finally:
            grid.end()
        return report(grid)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=12.0, help="about how long it trains")
    parser.add_argument("--phases", type=int, default=3)
    parser.add_argument(
        "--speeds", type=float, nargs="+", default=[0.4, 0.4, 0.6, 0.8, 1.2, 1.6],
        metavar="SECONDS", help="that a block takes each volunteer",
    )  # fmt: skip
    parser.add_argument(
        "--join-seconds", type=float, default=10.0, help="from one volunteer's start to the next"
    )
    parser.add_argument("--away-seconds", type=float, default=60.0, help="until others come")
    parser.add_argument("--steps", type=int, help="of a phase; else as fits the minutes")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--block-rows", type=int, default=2)
    parser.add_argument("--delayed-updates", choices=("off", "on", "both"), default="off")
    parser.add_argument("--lease-seconds", type=float, default=15.0)
    parser.add_argument("--folder", help="where the run is put, and removed afterwards")
    options = parser.parse_args()
    if options.steps is None:
        blocks = sum(1 / seconds for seconds in options.speeds) * options.minutes * 60 * 0.8
        rows = blocks * options.block_rows / PATHS / options.phases
        options.steps = max(2, round(rows / options.batch))
    return options


class Volunteer:
    """A volunteer's process."""

    def __init__(self, name: str, process: subprocess.Popen, folder: Path, seconds: float):
        self.name, self.process, self.seconds_per_block = name, process, seconds
        self.log, self.marker = folder / f"{name}.log", folder / f"{name}.doing"

    @property
    def noted(self) -> Paced | None:
        return paced_by(self.marker)

    def says(self) -> list[str]:
        return self.log.read_text().splitlines()


class Look(NamedTuple):
    """What all do at one moment."""

    serving: dict[str, int]  # volunteer -> path
    training: set[int]  # paths whose phase is going on


class Grid:
    """The run, its backbones and volunteers."""

    def __init__(self, folder: Path, options: argparse.Namespace):
        self.folder, self.options = folder, options
        self.run_folder = folder / "run"
        self.cache = isolated_cache(folder / "cache")
        self.config_file = folder / "config.py"
        write_config(
            self.config_file,
            name="swarm grid",
            phases=options.phases,
            steps=options.steps,
            batch=options.batch,
            topology="grid(part_names(MODEL), (2, 2))",
        )
        self.backbones: dict[str, subprocess.Popen] = {}
        self.volunteers: list[Volunteer] = []
        self.does: Counter[str] = Counter()
        self.deserted: dict[str, Any] = {}
        self.going: list[Volunteer] = []  # who have left, until others come
        self.names_gone: set[str] = set()
        self.coming: list[tuple[float, float, int]] = []  # when, seconds of a block, its path
        self.began = self.seconds = self.left_at = 0.0
        self.last: Look | None = None

    # --- processes ----------------------------------------------------------------------------

    def run_to_the_end(self) -> None:
        """Starts all, and returns when the run is finished."""
        for path in range(PATHS):
            self.start_backbone(path)
            if path == 0:  # which makes the run
                self.wait_for(lambda: self.address(0), START_SECONDS)
        self.wait_for(lambda: all(map(self.address, range(PATHS))), START_SECONDS)
        run = open_run(self.run_folder)
        with contextlib.closing(run.ledger):
            self.began = time.monotonic()
            self.are_to_join(self.options.speeds, first_path=0)
            half = PATHS * self.options.phases * self.options.steps // 2
            while run.ledger.queue.unfinished():
                self.join_in_turn()
                seen = self.look(run)
                if self.deserted:
                    self.go_on_without(seen)
                elif _steps_taken(run) >= half:
                    self.desert(seen)
                time.sleep(LOOK_SECONDS)
            self.seconds = time.monotonic() - self.began

    def start_backbone(self, path: int) -> None:
        options, name = self.options, f"back-{path}"
        words = ["swarm", "start", str(self.config_file), "--run", str(self.run_folder)]
        words += ["--path", str(path), "--listen", f"tls://127.0.0.1:{free_port()}"]
        words += ["--name", name, "--block-rows", str(options.block_rows)]
        words += ["--lease-seconds", str(options.lease_seconds)]
        words += ["--delayed-updates"] if options.delayed_updates == "on" else []
        self.backbones[name] = self.start([*dipaco_words(), *words], name)

    def are_to_join(self, speeds: Iterable[float], first_path: int) -> None:
        """One after the other, from now on, each with the address of the next path."""
        now = time.monotonic()
        for number, seconds in enumerate(speeds):
            at = now + number * self.options.join_seconds
            self.coming.append((at, seconds, (first_path + number) % PATHS))

    def join_in_turn(self) -> None:
        while self.coming and time.monotonic() >= self.coming[0][0]:
            _, seconds, path = self.coming.pop(0)
            self.join(seconds, path)

    def join(self, seconds: float, path: int) -> None:
        """Starts a volunteer, with a credential of its own and the address of one path."""
        name = f"volunteer-{len(self.volunteers)}"
        its_pass = self.folder / f"{name}.pass"
        words = ["swarm", "token", "--run", str(self.run_folder), "--name", name]
        words = [*dipaco_words(), *words, "--out", str(its_pass)]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        words = [sys.executable, str(SLOW), str(seconds), str(self.folder / f"{name}.doing")]
        words += ["swarm", "join", self.address(path), "--token", str(its_pass)]
        self.volunteers.append(Volunteer(name, self.start(words, name), self.folder, seconds))

    def start(self, words: list[str], name: str) -> subprocess.Popen:
        environment = {**os.environ, "DIPACO_CACHE": str(self.cache), "OMP_NUM_THREADS": "1"}
        with (self.folder / f"{name}.log").open("a") as log:
            return subprocess.Popen(words, stdout=log, stderr=log, env=environment)

    def address(self, path: int) -> str:
        """Of the path's backbone; empty before it listens."""
        log = (self.folder / f"back-{path}.log").read_text()
        return log.rpartition("dipaco swarm join ")[2].split()[0] if "swarm join" in log else ""

    def wait_for(self, condition: Callable[[], Any], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            self.check_processes()
            if time.monotonic() > deadline:
                raise SystemExit(f"nothing happens for {seconds:.0f} s:\n{self.all_logs()}")
            time.sleep(0.1)

    def check_processes(self) -> None:
        """No process may end with an error."""
        volunteers = {one.name: one.process for one in self.volunteers}
        for name, process in (self.backbones | volunteers).items():
            if process.poll() not in (None, 0):
                raise SystemExit(f"{name} ended with {process.returncode}:\n{self.all_logs()}")

    def all_logs(self) -> str:
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"== {log.name}\n{log.read_text()[-1500:]}" for log in logs)

    def end(self) -> None:
        processes = [*self.backbones.values(), *(one.process for one in self.volunteers)]
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=5)
            process.kill()
            process.wait()

    # --- what happens -------------------------------------------------------------------------

    def look(self, run: Run) -> Look:
        """Counts what every volunteer does now; prints who serves which path when that changes."""
        self.check_processes()
        seen = look_at(run, {one.name for one in self.volunteers})
        for one in self.volunteers:
            noted = one.noted
            if noted is None or one.process.poll() is not None:
                continue
            path = seen.serving.get(one.name)
            if noted.doing == "computing":
                self.does["computing"] += 1
            elif path is None:
                self.does["at no path"] += 1
            else:
                self.does["in a step" if path in seen.training else "between phases"] += 1
        if seen != self.last:
            self.last = seen
            split = "  ".join(
                f"{path}{':' if path in seen.training else ' ended:'} "
                f"{' '.join(self._speeds_at(seen, path)) or '-'}"
                for path in range(PATHS)
            )
            print(f"  {time.monotonic() - self.began:6.1f} s  {split}", flush=True)
        return seen

    def _speeds_at(self, seen: Look, path: int) -> list[str]:
        return [
            f"{one.seconds_per_block:g}s"
            for one in self.volunteers
            if seen.serving.get(one.name) == path
        ]

    def desert(self, seen: Look) -> None:
        """The volunteers of the fastest one's path leave by Ctrl-C."""
        here = [one for one in self.volunteers if one.name in seen.serving]
        if not here:
            return  # all of them move
        path = seen.serving[min(here, key=lambda one: one.seconds_per_block).name]
        self.going = [one for one in here if seen.serving[one.name] == path]
        self.names_gone = {one.name for one in self.going}
        self.left_at = time.monotonic()
        for one in self.going:
            one.process.send_signal(signal.SIGINT)
        left = [one.seconds_per_block for one in self.going]
        self.deserted = {"path": path, "left": left, "seconds_without_volunteers": None}
        print(f"  {self.left_at - self.began:6.1f} s  path {path} is deserted", flush=True)

    def go_on_without(self, seen: Look) -> None:
        """Notes when the deserted path is served again; has others join when it is time."""
        path, away_seconds = self.deserted["path"], time.monotonic() - self.left_at
        served_by = {name for name, at in seen.serving.items() if at == path}
        others = served_by - self.names_gone
        if others and self.deserted["seconds_without_volunteers"] is None:
            self.deserted["seconds_without_volunteers"] = round(away_seconds, 1)
        if not self.going:
            return
        if any(one.process.poll() is None for one in self.going):
            if away_seconds > LEAVE_SECONDS:
                raise SystemExit(f"they do not leave:\n{self.all_logs()}")
        elif away_seconds >= self.options.away_seconds:
            self.are_to_join((one.seconds_per_block for one in self.going), path + 1)
            self.going = []


def look_at(run: Run, names: set[str]) -> Look:
    """By the ledger. The status of a path whose phase has ended is that of its end."""
    training = {
        one.task.path
        for one in run.ledger.queue.unfinished()
        if (one.task.kind, one.state) == ("train", "claimed")
    }
    serving: dict[str, int] = {}
    statuses = run.ledger.swarms.statuses()
    for status in sorted(statuses, key=lambda one: one["path"] in training):
        for session, peer in status.get("peers", {}).items():
            name = session.partition("/")[0]
            if name in names and peer["computes"]:
                serving[name] = status["path"]
    return Look(serving, training)


def _steps_taken(run: Run) -> int:
    """By all paths."""
    return sum(len(run.ledger.swarms.steps(MODULAR, path)) for path in range(PATHS))


# --- what it is compared with -------------------------------------------------------------------


class Presence(NamedTuple):
    """Of a volunteer, from its first block on; times as `time.time`."""

    began: float
    ended: float  # infinite: it stays until the run is over
    rows_per_second: float


@functools.cache
def best_split(speeds: tuple[float, ...], paths: int = PATHS) -> float:
    """Of the slowest path, rows a second, when each volunteer stays at one path; of fewer
    volunteers than paths, when they are spread without loss.
    """
    if len(speeds) < paths:
        return sum(speeds) / paths
    return max(
        min(
            sum(speed for speed, at in zip(speeds, split, strict=True) if at == path)
            for path in range(paths)
        )
        for split in itertools.product(range(paths), repeat=len(speeds))
    )


def rows_of_a_path(presences: Iterable[Presence], began: float, ended: float) -> tuple:
    """How many rows of each path those who were there could have computed between two moments: with
    the best split, and spread without loss.
    """
    presences = list(presences)
    edges = sorted(
        {began, ended}
        | {at for one in presences for at in (one.began, one.ended) if began < at < ended}
    )
    by_split = by_spread = 0.0
    for start, stop in itertools.pairwise(edges):
        here = tuple(
            sorted(
                round(one.rows_per_second, 3)
                for one in presences
                if one.began <= start and stop <= one.ended
            )
        )
        by_split += (stop - start) * best_split(here)
        by_spread += (stop - start) * sum(here) / PATHS
    return by_split, by_spread


def ends_of_phases(run: Run) -> list[float]:
    """When the last module of each phase stepped, as `time.time`."""
    ends: dict[int, float] = {}
    for event in run.ledger.history.after():
        task = event.task
        if task is not None and (task.kind, task.arm, event.outcome) == ("outer", MODULAR, "done"):
            ends[task.phase] = max(ends.get(task.phase, 0.0), event.ended)
    return [ends[phase] for phase in sorted(ends)]


def phases_of(run: Run, presences: Sequence[Presence], rows_per_path: int) -> list[dict[str, Any]]:
    """Of each phase: how long it took, and how many times that of a best way."""
    ends = ends_of_phases(run)
    began = min(one.began for one in presences)
    found = []
    for start, end in itertools.pairwise([began, *ends]):
        by_split, by_spread = rows_of_a_path(presences, start, end)
        changed = any(start < at < end for one in presences for at in (one.began, one.ended))
        found.append(
            {
                "seconds": round(end - start, 1),
                "of_best_split": round(by_split / rows_per_path, 3),
                "of_no_loss": round(by_spread / rows_per_path, 3),
                "calm": not changed,
            }
        )
    return found


# --- the report -----------------------------------------------------------------------------------


def report(grid: Grid) -> dict[str, Any]:
    """What to print, as JSON."""
    options = grid.options
    noted = {one.name: found for one in grid.volunteers if (found := one.noted) is not None}
    presences = [
        Presence(
            one.began,
            one.ended if name in grid.names_gone else math.inf,
            options.block_rows / one.seconds_per_block,
        )
        for name, one in noted.items()
    ]
    run = open_run(grid.run_folder)
    with contextlib.closing(run.ledger):
        replayed = [replay(run, path) for path in range(PATHS)]
        rows = [rows_lost_and_twice(run, options.block_rows, path=path) for path in range(PATHS)]
        phases = phases_of(run, presences, options.steps * options.batch)
        delays = Counter(
            one.delay for path in range(PATHS) for one in run.ledger.swarms.steps(MODULAR, path)
        )
    computing, blocks = share_of_computing(noted.values())
    all_speeds = tuple(options.block_rows / seconds for seconds in options.speeds)
    calm = [one["of_best_split"] for one in phases if one["calm"]]
    ratios = [one["of_best_split"] for one in phases]
    sampled = grid.does.total()
    return {
        "idle": None if computing is None else round(1 - computing, 3),
        "idle_by_volunteer": {
            name: round(1 - share, 3)
            for name, one in noted.items()
            if (share := share_of_computing([one])[0]) is not None
        },
        "idle_sampled": {
            what: round(times / sampled, 3)
            for what, times in sorted(grid.does.items())
            if what != "computing"
        },
        "best_split_idle": round(1 - PATHS * best_split(all_speeds) / sum(all_speeds), 3),
        "phases": phases,
        "largest_of_best_split": {"all": max(ratios), "calm": max(calm, default=None)},
        "median_of_best_split": {
            "all": round(statistics.median(ratios), 3),
            "calm": round(statistics.median(calm), 3) if calm else None,
        },
        "moves": {one.name: sum(MOVES in line for line in one.says()) for one in grid.volunteers},
        "sent_on": sum(SENT_ON in line for one in grid.volunteers for line in one.says()),
        "deserted": grid.deserted,
        "steps": sum(steps for steps, _, _ in rows),
        "steps_late": delays[1],
        "rows_lost": sum(lost for _, lost, _ in rows),
        "rows_twice": sum(twice for _, _, twice in rows),
        "blocks_computed": blocks,
        "replay_max_difference": max(one.largest_difference for one in replayed),
        "replay_by_path": [one.largest_difference for one in replayed],
        "loss_max_difference": max(one.loss_difference for one in replayed),
        "seconds": round(grid.seconds, 1),
    }


if __name__ == "__main__":
    main()
