"""A swarm in a storm: processes join the swarm of one path of a real run, leave and are killed. The
result must equal one undisturbed machine's.

    python tools/swarm_storm.py --minutes 10
    python tools/swarm_storm.py --minutes 0.3 --volunteers 2 --events 4        the suite's form

Two backbones, volunteers of different speeds (some of them clients). Events come in
turn, as many joins as departures: a volunteer joins, leaves by Ctrl-C, is killed by SIGKILL at
random, while it computes, or in the middle of an averaging, is stopped and goes on later (SIGSTOP).
The leading backbone is killed, and started again. A liar joins (`--liars`): see `swarm_attacks.py`.
A volunteer joins from behind a router (`--routers`). All is then on hosts of `support/hosts.py`,
which need root, iproute2 and iptables, and elsewhere `not_done` says so. A volunteer joins that is
50 times slower than the fastest (`--slow`), and stays. All volunteers leave at once
(`--desertions`). A minute later a plain worker has the path, at the pace of the fastest volunteer,
and when it has taken a step, new volunteers join. Then plain AdamW in this process replays the rows
in the ledger, one large batch after the other. Compared are the parameters at the end of every
phase and the loss of every step.

Each volunteer waits after every block (`--seconds-per-block`), so that several speeds fit on this
machine. `efficiency` is the rows of volunteers that counted, over those that all volunteers could
have computed alone: the sum of their own speeds times the time from their first block to their
last. So time in which no volunteer is there, and steps of a plain worker (`steps_by_worker`), are
in neither. Rows of liars and of the 50 times slower are not in it either, so that it shows only
their effect on others. `slow` says of each of the latter how many of its blocks counted, and
whether it was parked: one of the two must be. `computing` is the share of the volunteers' time in
which they computed, and `blocks_in_vain` are blocks that they computed and that did not count: of
peers that died, and backups. `--megabits` paces their links, and `--d-model 224` makes the path one
of a million parameters. With `--local-steps` a block has the rows of so many steps.

    python tools/swarm_storm.py --minutes 1 --events 0 --local-steps 5 --megabits 10

The last line is one JSON object. There `cost_seconds` is, for each kind of event, how much longer
than the median the two steps from it on took, on average. A desertion's cost is the time without
any computing: until the worker began, and from its last step until a volunteer began. `liars` has
the evidence against each, `desertions` the course of each.
"""

import argparse
import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from support.command_line import parser_of
from support.hosts import Hosts, why_not
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

from dipaco.runs.opening import open_run
from dipaco.runs.run import Run

SLOW = Path(__file__).with_name("swarm_slow.py")
PUBLIC, BEHIND_A_ROUTER, ROUTER_AT = "public", "joined behind a router", 5  # the sixth event
LIAR = Path(__file__).with_name("swarm_attacks.py")
LIES = ("mean", "negated", "scaled", "nan", "last-word", "backdoor")
JOINED_SLOW, SLOW_AT, TIMES_SLOWER = "joined, 50 times slower", 8, 50.0
DESERTION = "all leave"
LEAVE_SECONDS = 60.0  # for a volunteer to leave by Ctrl-C
HAND_OVER_SECONDS = 240.0  # for a plain worker to have the path, and for volunteers to have it back


def main() -> None:
    options = parse()
    with scratch(options.folder, "swarm-storm-") as folder:
        storm = Storm(folder, options)
        try:
            storm.run_to_the_end()
        finally:
            storm.end()
        print(json.dumps(report(storm)))


def parse() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument(
        "--minutes", type=float, default=1.0, help="about how long the swarm trains"
    )
    parser.add_argument("--volunteers", type=int, default=5, help="at a time, about")
    parser.add_argument("--clients", type=int, default=2, help="of them")
    parser.add_argument("--backbones", type=int, default=2)
    parser.add_argument("--events", type=int, default=40, help="joins, leaves and deaths")
    parser.add_argument("--liars", type=int, default=4, help="of them, one of each kind in turn")
    parser.add_argument("--routers", type=int, default=1, help="of them, joins behind a router")
    parser.add_argument("--slow", type=int, default=1, help="of them, joins, 50 times slower")
    parser.add_argument(
        "--desertions", type=int, metavar="N",
        help="of them, all volunteers leave; two minutes each (default: 1 from 5 minutes on)",
    )  # fmt: skip
    parser.add_argument("--seconds-per-block", type=float, default=0.4, help="of the fastest")
    parser.add_argument("--steps", type=int, help="of a phase; else as fits the minutes")
    parser.add_argument("--phases", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--block-rows", type=int, default=2)
    parser.add_argument("--local-steps", type=int, default=1, help="of a member by itself")
    parser.add_argument("--megabits", type=float, help="of each volunteer's link")
    parser.add_argument(
        "--d-model", type=int, default=32, help="of the path; 224: a million values"
    )
    parser.add_argument("--lease-seconds", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", help="where the run is put, and removed afterwards")
    options = parser.parse_args()
    if options.desertions is None:
        options.desertions = int(options.minutes >= 5)
    if options.steps is None:
        of_each = [options.seconds_per_block * (1 + i % 3) for i in range(options.volunteers)]
        rows = options.minutes * 60 * 0.8 * sum(options.block_rows / one for one in of_each)
        rounds = max(4, round(rows / options.batch / options.phases))
        options.steps = rounds * options.local_steps
    return options


class VolunteerProcess:
    """A volunteer's process."""

    def __init__(self, name: str, process: subprocess.Popen, log: Path, seconds_per_block: float):
        self.name, self.process, self.log = name, process, log
        self.seconds_per_block = seconds_per_block
        self.is_client = self.is_slow = False

    def began(self) -> float | None:
        """Time of its first block, as `time.time`, or None."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            return float(self.log.read_text().split("\n")[1])
        return None


class Storm:
    """One run, its swarm, and the events that it is put through."""

    def __init__(self, folder: Path, options: argparse.Namespace):
        self.folder, self.options = folder, options
        self.run_folder = folder / "run"
        self.cache = isolated_cache(folder / "cache")
        self.config_file = folder / "config.py"
        write_config(
            self.config_file,
            name="swarm storm",
            phases=options.phases,
            steps=options.steps,
            batch=options.batch,
            d_model=options.d_model,
        )
        self.rng = random.Random(options.seed)
        self.faults: Counter[str] = Counter()
        self.backbones: dict[str, subprocess.Popen] = {}
        self.volunteers: dict[str, VolunteerProcess] = {}
        self.gone: list[VolunteerProcess] = []
        self.others: list[subprocess.Popen] = []
        self.liars: dict[str, str] = {}  # name -> lie
        self.liar_processes: list[subprocess.Popen] = []
        self.slow: list[VolunteerProcess] = []
        self.steps_of_workers: list[Path] = []  # a file of each, with a line for each step
        self.desertions: list[dict[str, Any]] = []
        self.happened: list[tuple[str, int]] = []  # an event, and at which step
        self.not_done: dict[str, str] = {}  # event -> why there is none
        self.behind: dict[str, str] = {}  # volunteer -> its host
        self.stack = contextlib.ExitStack()
        self.hosts = self._hosts()
        self.ports = {f"back-{n}": free_port() for n in range(options.backbones)}
        self.number = 0
        self.seconds = 0.0
        self.events = 0

    # --- processes ----------------------------------------------------------------------------

    def _hosts(self) -> Hosts | None:
        """A public host, and one behind each router. None if all is on this machine."""
        if not self.options.routers or self.options.events <= ROUTER_AT:
            return None
        if (problem := why_not()) is not None:
            self.not_done[BEHIND_A_ROUTER] = problem
            return None
        homes = [f"home-{n}@router-{n}" for n in range(self.options.routers)]
        return self.stack.enter_context(Hosts(PUBLIC, *homes))

    def run_to_the_end(self) -> None:
        """Starts the swarm, causes the events, and returns when the run is finished."""
        first, *others = self.ports
        self.start_backbone(first)
        self.wait_for(lambda: "swarm join" in self.log_of(first))
        for name in others:
            self.start_backbone(name)
        self.pass_file = self.folder / "ana.pass"
        self.issue("ANA", self.pass_file)
        for number in range(self.options.volunteers):
            self.join(is_client=number < self.options.clients)
        run = open_run(self.run_folder)
        self.wait_for(lambda: bool(run.ledger.swarms.steps("modular", 0)), 900)
        began = time.monotonic()
        total = self.options.phases * self.options.steps
        schedule = self._schedule(run)
        try:
            while run.ledger.queue.unfinished():
                self.check_processes()
                steps = _steps_taken(run)
                due = (self.events + 1) * total / (self.options.events + 2)
                if self.events < self.options.events and steps >= due:
                    name, cause = schedule[self.events]
                    if cause():
                        self.faults[name] += 1
                        self.happened.append((name, steps))
                        seconds = time.monotonic() - began
                        print(f"  {seconds:6.1f} s  step {steps:4}  {name}", flush=True)
                    self.events += 1
                if steps >= total and not self.seconds:
                    self.seconds = time.monotonic() - began
                time.sleep(0.05)
        finally:
            run.ledger.close()
        self.seconds = self.seconds or time.monotonic() - began

    def _schedule(self, run: Run) -> list[tuple[str, Any]]:
        """The events, in their order."""
        options, kinds = self.options, list(self._events())
        liars = [(f"joined to lie: {lie}", lambda lie=lie: self.join_liar(lie)) for lie in LIES]
        for number in range(options.liars):
            kinds.insert(4 + 2 * number, liars[number % len(liars)])
        if self.hosts is not None:
            for number in range(options.routers):
                kinds.insert(ROUTER_AT + 3 * number, (BEHIND_A_ROUTER, self.join_behind_a_router))
        events = list(itertools.islice(itertools.cycle(kinds), options.events))
        for number in range(options.slow):
            events.insert(SLOW_AT + 5 * number, (JOINED_SLOW, self.join_slow))
        for number in range(options.desertions):
            at = round((number + 1) * options.events / (options.desertions + 1))
            events.insert(at, (DESERTION, lambda: self.all_leave(run)))
        return events[: options.events]

    def _events(self) -> Any:
        kill = signal.SIGKILL
        yield "joined", lambda: self.join() is not None
        yield "SIGKILL", lambda: self.send_signal_to_one(kill)
        yield "left by Ctrl-C", lambda: self.send_signal_to_one(signal.SIGINT)
        yield "SIGKILL of the leading backbone", self.kill_leader
        yield "joined", lambda: self.join() is not None
        yield "joined", lambda: self.join() is not None
        yield (
            "SIGKILL in the middle of an averaging",
            lambda: self.send_signal_to_one(kill, "averaging"),
        )
        yield "SIGSTOP for a while", self.stop_for_a_while
        yield "joined as a client", lambda: self.join(is_client=True) is not None
        yield "SIGKILL while it computes", lambda: self.send_signal_to_one(kill, "computing")

    def start_backbone(self, name: str) -> None:
        options = self.options
        host = "127.0.0.1" if self.hosts is None else self.hosts[PUBLIC].address
        listen = f"{host}:{self.ports[name]}"
        words = ["swarm", "start", str(self.config_file), "--run", str(self.run_folder)]
        words += ["--listen", listen, "--name", name, "--block-rows", str(options.block_rows)]
        words += ["--lease-seconds", str(options.lease_seconds), "--save-seconds", "5"]
        words += ["--local-steps", str(options.local_steps)]
        self.backbones[name] = self.start([*dipaco_words(), *words], name)

    def join(self, is_client: bool = False) -> VolunteerProcess | None:
        """Starts a volunteer. Speeds are 1, 1/2, 1/3 of the fastest in turn."""
        self.number += 1
        seconds = self.options.seconds_per_block * (1 + self.number % 3)
        volunteer = self._volunteer(f"volunteer-{self.number}", seconds, self.pass_file, is_client)
        volunteer.is_client = is_client
        return volunteer

    def _volunteer(
        self, name: str, seconds: float, its_pass: Path, is_client: bool = False
    ) -> VolunteerProcess:
        marker = self.folder / f"{name}.doing"
        words = [sys.executable, str(SLOW), str(seconds), str(marker), "swarm", "join"]
        words += [self.address(), "--token", str(its_pass)]
        words += ["--client"] if is_client else []
        words += ["--megabits", str(self.options.megabits)] if self.options.megabits else []
        volunteer = VolunteerProcess(name, self.start(words, name), marker, seconds)
        self.volunteers[name] = volunteer
        return volunteer

    def join_slow(self) -> bool:
        """Starts a volunteer with a separate credential, by which its blocks are told from
        others'.
        """
        name = f"slow-{len(self.slow) + 1}"
        its_pass = self.folder / f"{name}.pass"
        self.issue(name, its_pass)
        seconds = TIMES_SLOWER * self.options.seconds_per_block
        volunteer = self._volunteer(name, seconds, its_pass)
        volunteer.is_slow = True
        self.slow.append(volunteer)
        return True

    def join_behind_a_router(self) -> bool:
        self.behind[f"volunteer-{self.number + 1}"] = (
            f"home-{len(self.behind) % self.options.routers}"
        )
        return self.join() is not None

    def join_liar(self, lie: str) -> bool:
        """Starts a volunteer with a separate credential, which it should lose."""
        name = f"liar-{len(self.liars) + 1}"
        self.liars[name] = lie
        its_pass = self.folder / f"{name}.pass"
        self.issue(name, its_pass)
        pace = str(self.options.seconds_per_block), str(self.folder / f"{name}.doing")
        words = [sys.executable, str(LIAR), "--live", lie, *pace, "swarm", "join", self.address()]
        self.liar_processes.append(self.start([*words, "--token", str(its_pass)], name))
        return True

    def start_worker(self) -> subprocess.Popen:
        """A plain worker, which takes a step in the time in which the fastest volunteer would."""
        options, name = self.options, f"plain-{len(self.steps_of_workers) + 1}"
        steps = self.folder / f"{name}.steps"
        seconds = options.seconds_per_block * options.batch / options.block_rows
        words = [sys.executable, str(SLOW), str(seconds), str(steps), "worker"]
        words += ["--run", str(self.run_folder), "--name", name]
        words += ["--lease-seconds", str(options.lease_seconds)]
        self.steps_of_workers.append(steps)
        worker = self.start(words, name)
        self.others.append(worker)
        return worker

    def issue(self, name: str, out: Path) -> None:
        words = ["swarm", "token", "--run", str(self.run_folder), "--name", name, "--out", str(out)]
        subprocess.run([*dipaco_words(), *words], check=True, stdout=subprocess.DEVNULL)

    def start(self, words: list[str], name: str) -> subprocess.Popen:
        environment = {**os.environ, "DIPACO_CACHE": str(self.cache)}
        environment |= {"OMP_NUM_THREADS": "1"}
        with (self.folder / f"{name}.log").open("a") as log:
            if self.hosts is None:
                return subprocess.Popen(words, stdout=log, stderr=log, env=environment)
            host = self.hosts[self.behind.get(name, PUBLIC)]
            return host.popen(words, stdout=log, stderr=log, env=environment)

    def address(self) -> str:
        """The address of any backbone that is running."""
        for name, process in self.backbones.items():
            log = self.log_of(name)
            if process.poll() is None and "swarm join" in log:
                return log.rpartition("dipaco swarm join ")[2].split()[0]
        raise SystemExit("no backbone is running:\n" + self.log_of(next(iter(self.backbones))))

    def log_of(self, name: str) -> str:
        file = self.folder / f"{name}.log"
        return file.read_text() if file.exists() else ""

    def wait_for(self, condition: Any, seconds: float = 600.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            self.check_processes()
            if time.monotonic() > deadline:
                raise SystemExit("the swarm does not start:\n" + self.all_logs())
            time.sleep(0.1)

    def all_logs(self) -> str:
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"== {log.name}\n{log.read_text()[-1500:]}" for log in logs)

    def check_processes(self) -> None:
        """Starts killed backbones again. No process may end with an error."""
        for name, process in list(self.backbones.items()):
            code = process.poll()
            if code == -signal.SIGKILL:
                self.start_backbone(name)
            elif code not in (None, 0):
                raise SystemExit(f"{name} ended with {code}:\n{self.log_of(name)[-3000:]}")
        for name, volunteer in list(self.volunteers.items()):
            code = volunteer.process.poll()
            if code not in (None, 0, -signal.SIGKILL):
                raise SystemExit(f"{name} ended with {code}:\n{self.log_of(name)[-3000:]}")
            if code is not None:
                self.gone.append(self.volunteers.pop(name))

    def end(self) -> None:
        for process in (
            *self.backbones.values(),
            *self.others,
            *self.liar_processes,
            *(volunteer.process for volunteer in self.volunteers.values()),
        ):
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=5)
            process.kill()
            process.wait()
        self.stack.close()

    # --- events -------------------------------------------------------------------------------

    def send_signal_to_one(self, number: int, doing: str | None = None) -> bool:
        """Sends a signal to a volunteer, at random or while it is `doing` something."""
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            running = [one for one in self.volunteers.values() if one.process.poll() is None]
            working = [one for one in running if _doing(one.log)]
            others = [one for one in working if not one.is_slow]
            if len(others) < 2:
                return False  # one must be left
            if number != signal.SIGKILL or doing is not None:
                working = others  # one that is very slow always computes, and leaves late
            matching = [one for one in working if doing in (None, _doing(one.log))]
            if matching:
                victim = self.rng.choice(matching)
                victim.process.send_signal(number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    victim.process.wait(timeout=20)
                return victim.process.poll() == (-number if number == signal.SIGKILL else 0)
            time.sleep(0.002)
        return False

    def stop_for_a_while(self) -> bool:
        working = [one for one in self.volunteers.values() if _doing(one.log) and not one.is_slow]
        if len(working) < 2:
            return False
        victim = self.rng.choice(working)
        victim.process.send_signal(signal.SIGSTOP)
        self._holds_within(3, lambda: False)
        victim.process.send_signal(signal.SIGCONT)
        return True

    def all_leave(self, run: Run) -> bool:
        """Every volunteer leaves by Ctrl-C. When a plain worker has taken a step, or after
        `HAND_OVER_SECONDS`, as many as the storm began with join.
        """
        options, left_at = self.options, time.time()
        going = list(self.volunteers.values())
        for process in (*(one.process for one in going), *self.liar_processes):
            process.send_signal(signal.SIGINT)
        worker = self.start_worker()
        steps = self.steps_of_workers[-1]
        self._see_them_off(going)
        handed_over = self._holds_within(
            HAND_OVER_SECONDS, lambda: bool(_lines(steps)) or not run.ledger.queue.unfinished()
        )
        if worker.poll() is not None:
            raise SystemExit(f"the plain worker ended:\n{self.all_logs()}")
        came = [self.join(is_client=number < options.clients) for number in
                range(options.volunteers)]  # fmt: skip
        begins = lambda: [at for one in came if one and (at := one.began()) is not None]  # noqa: E731
        self._holds_within(
            HAND_OVER_SECONDS, lambda: bool(begins()) or not run.ledger.queue.unfinished()
        )
        worker.terminate()  # it has handed the path back
        taken = [tuple(map(float, line.split())) for line in _lines(steps)]  # began, ended
        again_at = min(begins(), default=time.time())
        worker_began, worker_ended = (taken[0][0], taken[-1][1]) if taken else (again_at, again_at)
        self.desertions.append(
            {
                "handed_over": handed_over,
                "steps_of_worker": len(taken),
                "seconds_until_worker": round(worker_began - left_at, 1),
                "seconds_until_volunteers": round(max(0.0, again_at - worker_ended), 1),
            }
        )
        return True

    def _see_them_off(self, going: list[VolunteerProcess]) -> None:
        """Waits until they have left. One that only starts may end by the Ctrl-C itself."""
        for one in going:
            del self.volunteers[one.name]
        self._holds_within(
            LEAVE_SECONDS, lambda: all(one.process.poll() is not None for one in going)
        )
        for one in going:
            if one.process.poll() is None:
                one.process.kill()
                one.process.wait()
            self.gone.append(one)

    def _holds_within(self, seconds: float, condition: Any) -> bool:
        """Waits until a condition holds, at most so long. Killed backbones start meanwhile."""
        deadline = time.monotonic() + seconds
        while not (holds := condition()) and time.monotonic() < deadline:
            self.check_processes()
            time.sleep(0.1)
        return holds

    def kill_leader(self) -> bool:
        if len(self.backbones) < 2:
            return False
        run = open_run(self.run_folder)
        with contextlib.closing(run.ledger) as ledger:
            (status,) = ledger.swarms.statuses()
        process = self.backbones.get(status["leader"])
        if process is None or process.poll() is not None:
            return False
        process.kill()
        return process.wait() == -signal.SIGKILL


def _steps_taken(run: Run) -> int:
    """Number of steps up to the last one that the swarm has taken."""
    return max((one.step + 1 for one in run.ledger.swarms.steps("modular", 0)), default=0)


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def _doing(marker: Path) -> str:
    with contextlib.suppress(OSError):
        return marker.read_text().partition("\n")[0]
    return ""


# --- the checker ------------------------------------------------------------------------------


def rows_possible_alone(storm: Storm) -> float:
    """Rows that all volunteers could have computed in their time, each at its own speed, without
    waiting for each other. Volunteers that are 50 times slower are left out, as in the rows that
    counted.
    """
    noted = _noted(storm)
    options = storm.options
    possible = sum(one.seconds / one.seconds_per_block for one in noted)
    return possible * options.block_rows * options.local_steps


def _noted(storm: Storm) -> list[Paced]:
    """Notes of all usual volunteers on themselves."""
    return [noted for one in _usual_volunteers(storm) if (noted := paced_by(one.log)) is not None]


def _usual_volunteers(storm: Storm) -> list[VolunteerProcess]:
    """All that took part, without liars and the 50 times slower."""
    return [one for one in (*storm.gone, *storm.volunteers.values()) if not one.is_slow]


def blocks_by_name(run: Run) -> Counter[str]:
    """Blocks that counted, by the name on the credential."""
    counted: Counter[str] = Counter()
    for one in run.ledger.swarms.steps("modular", 0):
        for who, blocks in one.blocks.items():
            counted[who.partition("/")[0]] += len(blocks)
    return counted


def what_slow_ones_did(storm: Storm, counted: Counter[str]) -> dict[str, Any]:
    """Each volunteer that is 50 times slower, of which one of the two must be true."""
    return {
        one.name: {
            "blocks_counted": counted[one.name],
            "parked": "waits: the others need less" in storm.log_of(one.name),
        }
        for one in storm.slow
    }


def cost_seconds(storm: Storm, run: Run) -> dict[str, float]:
    """For each kind of event, the time by which its two steps exceeded the median. For a desertion,
    the time without any computing.
    """
    seconds = {one.step: one.seconds for one in run.ledger.swarms.steps("modular", 0)}
    usual = float(np.median(list(seconds.values())))
    of_kind: dict[str, list[float]] = {}
    for name, step in storm.happened:
        if name != DESERTION:
            took = [seconds[at] for at in (step, step + 1) if at in seconds]
            of_kind.setdefault(name, []).append(sum(took) - usual * len(took))
    for one in storm.desertions:
        idle = one["seconds_until_worker"] + one["seconds_until_volunteers"]
        of_kind.setdefault(DESERTION, []).append(idle)
    return {name: round(float(np.mean(each)), 2) for name, each in sorted(of_kind.items())}


def liars_found(storm: Storm, run: Run) -> dict[str, Any]:
    """For each liar its lie, the number of steps in which its rows counted, and the evidence. The
    others that were accused, which must be none, follow.
    """
    steps = run.ledger.swarms.steps("modular", 0)
    evidence = {one["session"].partition("/")[0]: one for one in run.ledger.swarms.evidence()}
    found: dict[str, Any] = {}
    for name, lie in storm.liars.items():
        counted = sum(any(who.startswith(f"{name}/") for who in one.blocks) for one in steps)
        problem = evidence[name]["problem"] if name in evidence else None
        found[name] = {"lie": lie, "steps_counted": counted, "found": problem}
    found["honest_accused"] = sorted(set(evidence) - set(storm.liars))
    return found


def report(storm: Storm) -> dict[str, Any]:
    """Prints the events, and returns the JSON object."""
    run = open_run(storm.run_folder)
    with contextlib.closing(run.ledger):
        replayed = replay(run)
        ours = replayed.swarm_losses
        block_rows, local_steps = storm.options.block_rows, storm.options.local_steps
        by_worker = sum(len(_lines(file)) for file in storm.steps_of_workers)
        steps, lost, twice = rows_lost_and_twice(run, block_rows, by_worker)
        possible = rows_possible_alone(storm)
        by_name = blocks_by_name(run)
        unusual = sum(by_name[name] for name in (*storm.liars, *(one.name for one in storm.slow)))
        counted = steps * storm.options.batch - unusual * block_rows * local_steps
        computing, blocks = share_of_computing(_noted(storm))
        (status,) = run.ledger.swarms.statuses()
        costs, liars = cost_seconds(storm, run), liars_found(storm, run)
    answer = {
        "replay_max_difference": replayed.largest_difference,
        "loss_max_difference": replayed.loss_difference,
        "steps": steps + by_worker,
        "steps_by_worker": by_worker,
        "rows_twice": twice,
        "rows_lost": lost,
        "efficiency": round(counted / possible, 3) if possible else None,
        "computing": computing,
        "blocks_in_vain": blocks - counted // (block_rows * local_steps),
        "loss": float(np.mean(ours[-max(1, len(ours) // 10) :])),
        "faults": dict(storm.faults),
        "events": storm.faults.total(),
        "cost_seconds": costs,
        "not_done": storm.not_done,
        "liars": liars,
        "slow": what_slow_ones_did(storm, by_name),
        "desertions": storm.desertions,
        "volunteers": storm.number,
        "seconds": round(storm.seconds, 1),
        "refused": status["refused"],
    }
    for name, number in sorted(storm.faults.items()):
        print(f"{number:4} x {name}")
    return answer


if __name__ == "__main__":
    main()
