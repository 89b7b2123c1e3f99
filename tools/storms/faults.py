"""The faults of a storm. Each of them hits something that exists and reports whether it really
happened: the process is gone, the file was changed, the answer was given, the sentence was said.
"""

import itertools
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from storms.corruptions import CORRUPTIONS, TWICE
from storms.fleet import Fleet, StormFault
from support.fault_points import Fault

from dipaco.config import MODULAR
from dipaco.control.claims.queue import HeldClaim
from dipaco.errors import NOT_NOW
from dipaco.runs.run import Run

HOURS_OFF = (26, -26)  # a wall clock that is set to another day
ANSWER_SECONDS = 30.0  # Limit for a process to answer a request.


def names_of(fleet: Fleet) -> list[str]:
    """Every fault that can be done here, in the order of the storm."""
    return [name for name, _ in _all(fleet, random.Random(0))]


def sequence(fleet: Fleet, rng: random.Random, only: list[str] | None) -> Iterator[StormFault]:
    """Each fault once, then at random. With `only`, the named faults in that order."""
    faults = dict(_all(fleet, rng))
    order = list(faults) if only is None else only
    if unknown := [name for name in order if name not in faults]:
        raise SystemExit(f"No such faults here: {unknown}. There are: {', '.join(faults)}")
    again = [name for name in order if name not in ONCE]
    at_random = (rng.choice(again) for _ in itertools.count()) if again else iter(())
    return ((name, faults[name]) for name in itertools.chain(order, at_random))


# Faults that take longer than a phase are done once.
ONCE = ("SIGKILL of all at once", "two launchers", "another config", "another version")


def _all(fleet: Fleet, rng: random.Random) -> list[StormFault]:
    places, seconds = fleet.places, fleet.options.outage_seconds
    executor = ["executor", "--lease-seconds", str(fleet.options.lease_seconds)]
    faults: list[StormFault] = [
        ("SIGKILL", partial(_signal, fleet, rng, signal.SIGKILL)),
        ("flipped byte", partial(_spoil, fleet, rng, _flip)),
        ("contribution: NaN", partial(_corrupt, fleet, rng, "NaN")),
        ("SIGTERM", partial(_signal, fleet, rng, signal.SIGTERM)),
        ("deleted object", partial(_spoil, fleet, rng, lambda content: None)),
        ("SIGSTOP past the lease", partial(_stop_past_lease, fleet, rng)),
        *(
            [("wall clock jumps", partial(_jump, fleet, rng, itertools.cycle(HOURS_OFF)))]
            if fleet.has_clocks
            else []
        ),
        ("cut object", partial(_spoil, fleet, rng, lambda content: content[:-7])),
        ("deleted newest snapshot", partial(_delete_snapshot, fleet)),
        ("another config", partial(_other_config, fleet)),
        ("another version", partial(_other_version, fleet)),
        *(
            (f"contribution: {each}", partial(_corrupt, fleet, rng, each))
            for each in (*CORRUPTIONS, TWICE)
            if each != "NaN"
        ),
        ("SIGKILL of an executor", _Victim(fleet, executor, _dies_in_a_step)),
        ("SIGKILL of the monitor", _Victim(fleet, ["monitor"], _says_that_it_looks)),
        ("two launchers", partial(_two_launchers, fleet)),
        ("SIGKILL of all at once", partial(_kill_all, fleet)),
    ]
    if places.proxy is not None:
        faults[1:1] = [
            (f"store: {fault}", partial(_store, fleet, fault, seconds))
            for fault in ("500", "reset", "slow")
        ]
        faults += [
            (f"store: {fault}", partial(_store, fleet, fault, 0.2))
            for fault in ("503", "garbage", "cut", "after")
        ]
    if places.server is not None:
        faults.insert(2, ("PostgreSQL restarted", partial(_restart_database, fleet, seconds)))
    return faults


# --- processes --------------------------------------------------------------------------------


def _held(fleet: Fleet, run: Run) -> list[HeldClaim]:
    """Claims of workers that live."""
    return [held for held in run.ledger.queue.held() if held.worker in fleet.processes]


def _signal(fleet: Fleet, rng: random.Random, number: int, run: Run) -> bool:
    """Sends a signal to a worker in the middle of a task."""
    held = _held(fleet, run)
    if not held:
        return False
    process = fleet.processes[rng.choice(held).worker]
    process.send_signal(number)
    process.wait(timeout=60)
    return process.returncode == (-number if number == signal.SIGKILL else 0)


class _Victim:
    """A process of another role, started when its turn comes and killed at its work.

    Args:
      words: its role, `executor` or `monitor`, and its options.
      orders: marker file -> request for `misbehave.py`. The process is killed once the file exists.
    """

    def __init__(self, fleet: Fleet, words: list[str], orders: Callable[[Path], dict[str, object]]):
        self._fleet, self._words, self._orders = fleet, words, orders
        self._role = words[0]
        self._process: subprocess.Popen | None = None

    def __call__(self, run: Run) -> bool:
        marker = self._fleet.folder / f"{self._role}.marker"
        if self._process is None:
            words = self._fleet.command(*self._words)
            words = self._fleet.misbehaving(self._orders(marker), *words)
            self._process = self._fleet.start_beside(self._role, words)
        if not marker.exists():
            if code := self._process.poll():  # 0: the run was finished before
                raise SystemExit(f"the {self._role} ended with {code}: {self._fleet.folder}")
            return False
        self._process.kill()
        is_killed = self._process.wait(timeout=60) == -signal.SIGKILL
        marker.unlink()
        self._process = None
        return is_killed


def _dies_in_a_step(marker: Path) -> dict[str, object]:
    """Kills an executor that has read all contributions and saved nothing. It looks for tasks all
    the time, or the worker that makes a module's last contribution would take the step first.
    """
    fault = Fault("before save", "outer")
    return {"fault": fault._asdict(), "marker": str(marker), "is_eager": True}


def _says_that_it_looks(marker: Path) -> dict[str, object]:
    return {"looked": str(marker)}


def _kill_all(fleet: Fleet, run: Run) -> bool:
    for process in fleet.processes.values():
        process.kill()
    return all(process.wait() == -signal.SIGKILL for process in fleet.processes.values())


def _stop_past_lease(fleet: Fleet, rng: random.Random, run: Run) -> bool:
    """A worker that holds a task is silent for two leases. Others take the task over meanwhile."""
    held = _held(fleet, run)
    if not held:
        return False
    stopped = rng.choice(held)
    process = fleet.processes[stopped.worker]
    process.send_signal(signal.SIGSTOP)
    until = time.monotonic() + 2 * fleet.options.lease_seconds
    while time.monotonic() < until:
        time.sleep(0.2)
        run.ledger.reaper.reap()
    process.send_signal(signal.SIGCONT)
    still = {(h.worker, h.attempt, h.task) for h in run.ledger.queue.held()}
    return (stopped.worker, stopped.attempt, stopped.task) not in still


def _jump(fleet: Fleet, rng: random.Random, hours: Iterator[int], run: Run) -> bool:
    """A worker's wall clock jumps by more than a day. The worker must keep the task that it holds
    for a lease and a half, or finish it by itself.
    """
    held = [
        each
        for each in _held(fleet, run)
        if each.worker in fleet.clocks and not fleet.is_doomed(each.worker)
    ]
    if not held:
        return False
    one = rng.choice(held)
    process, clock = fleet.processes[one.worker], fleet.clocks[one.worker]
    wrong_before, lost = clock.wrong_readings, _lost_tasks(run, one.worker)
    clock.jump(next(hours) * 3600)
    until = time.monotonic() + 1.5 * fleet.options.lease_seconds
    while time.monotonic() < until:
        time.sleep(0.1)
        run.ledger.reaper.reap()
    if process.poll() not in (None, 0):
        return False
    if _lost_tasks(run, one.worker) > lost:
        raise SystemExit(f"{one.worker} lost a lease because its wall clock jumped")
    return clock.wrong_readings > wrong_before


def _lost_tasks(run: Run, worker: str) -> int:
    return sum(each.lost_tasks for each in run.ledger.members.list() if each.name == worker)


def _two_launchers(fleet: Fleet, run: Run) -> bool:
    """Both do tasks of the run. Then one is killed, and the other is asked to leave."""
    names = [f"launcher-{n}-{time.monotonic_ns()}" for n in range(2)]
    launchers = []
    for number, name in enumerate(names):
        words = fleet.command("launch", str(fleet.config_file), "--workers", "1", "--name", name)
        launchers.append(fleet.start_beside(name, words, number % fleet.options.workers))
    deadline = time.monotonic() + 3 * ANSWER_SECONDS
    have_worked: set[str] = set()
    while time.monotonic() < deadline and len(have_worked) < 2 and run.ledger.queue.unfinished():
        time.sleep(0.2)
        for member in run.ledger.members.list():
            name = next((n for n in names if member.name.startswith(n)), None)
            if name is not None and member.committed_tasks:
                have_worked.add(name)
    are_here = all(launcher.poll() is None for launcher in launchers)
    launchers[0].kill()
    launchers[1].terminate()
    for launcher in launchers:
        launcher.wait(timeout=60)
    return are_here and len(have_worked) == 2


def _other_config(fleet: Fleet, run: Run) -> bool:
    """A worker that brings another config is refused with a sentence."""
    config = str(fleet.config_file)
    words = fleet.command("train", config, "--set", "outer.learning_rate=0.5")
    return _is_refused(fleet, words, "RunOfOtherConfig")


def _other_version(fleet: Fleet, run: Run) -> bool:
    words = fleet.misbehaving({"version": "0.0.0"}, *fleet.command("worker"))
    return _is_refused(fleet, words, "RunOfOtherVersion", NOT_NOW)


def _is_refused(fleet: Fleet, words: list[str], error: str, code: int = 2) -> bool:
    variables = {**os.environ, **fleet.places.machine(0)}
    done = subprocess.run(words, capture_output=True, text=True, env=variables, timeout=120)
    if (done.returncode, done.stderr.strip().partition(":")[0]) != (code, error):
        raise SystemExit(f"Expected {error}, and it was {done.returncode}: {done.stderr[-2000:]}")
    return True


# --- contributions ----------------------------------------------------------------------------


def _corrupt(fleet: Fleet, rng: random.Random, corruption: str, run: Run) -> bool:
    """A worker in the middle of a phase ends it with this corrupted contribution."""
    held = [
        each.worker
        for each in _held(fleet, run)
        if each.task.kind == "train"
        and each.task.arm == MODULAR
        and not fleet.is_doomed(each.worker)
        and (corruption != "stale" or each.task.phase > 0)
    ]
    if not held:
        return False
    worker = rng.choice(held)
    order, done = (fleet.folder / f"{worker}.{suffix}" for suffix in ("order", "done"))
    expected = f"{done.read_text() if done.exists() else ''}{corruption}\n"
    refused = run.ledger.redos.num_refusals()
    order.write_text(corruption)
    deadline = time.monotonic() + ANSWER_SECONDS
    while not (done.exists() and done.read_text() == expected):
        if time.monotonic() > deadline or fleet.processes[worker].poll() is not None:
            order.unlink(missing_ok=True)
            return False
        time.sleep(0.05)
    if corruption == TWICE:
        return True
    fleet.corruptions.append(corruption)
    while run.ledger.redos.num_refusals() == refused and time.monotonic() < deadline:
        time.sleep(0.05)  # The end of the storm checks that it was refused.
    return True


# --- bytes ------------------------------------------------------------------------------------


def _spoil(
    fleet: Fleet, rng: random.Random, spoil: Callable[[bytes], bytes | None], run: Run
) -> bool:
    """A contribution that is still to be averaged, or a module that paths are to start from."""
    arm, names = run.plan.arm(MODULAR), []
    for phase in range(arm.phases):
        done = run.ledger.facts.receipts_at(MODULAR, phase + 1)
        for module in set(arm.topology.modules) - done.keys():
            contributions = run.ledger.facts.contributions(MODULAR, module, phase)
            names += [contribution.message.name for contribution in contributions]
            if not contributions and module in run.ledger.facts.modules_at(MODULAR, phase):
                names.append(run.ledger.facts.module(MODULAR, module, phase).parameters.name)
    name = rng.choice(sorted(names)) if names else None
    before = None if name is None else fleet.content(name)
    if name is None or before is None:
        return False
    fleet.replace(name, spoil(before))
    return fleet.content(name) != before


def _flip(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def _delete_snapshot(fleet: Fleet, run: Run) -> bool:
    newest = [each for each in run.ledger.progress.newest_phases() if each.arm == MODULAR]
    if not newest:
        return False
    snapshot = run.ledger.facts.snapshot(MODULAR, newest[0].path, newest[0].phase)
    return fleet.delete_folder(snapshot.receipt.name)


# --- servers ----------------------------------------------------------------------------------


def _store(fleet: Fleet, fault: str, seconds: float, run: Run) -> bool:
    fleet.outage_seconds += seconds
    return fleet.places.fail_store(fault, seconds)


def _restart_database(fleet: Fleet, seconds: float, run: Run) -> bool:
    fleet.outage_seconds += seconds
    return fleet.places.restart_database(seconds)
