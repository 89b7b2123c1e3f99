"""What thousands of idle workers cost a PostgreSQL server, and how soon one of them has a new task.

    python tools/bench_idle.py                          on a server that is started here
    python tools/bench_idle.py --workers 256 --seconds 30 --phases 1000
    python tools/bench_idle.py --database URL           of a server on this machine

A run of 256 paths has `--phases` phases behind it; 255 paths are claimed, nothing is ready, and
`--many` workers are here. First every question of an idle worker is asked `--times` times over one
connection: `cpu_ms` is the processor time that the server takes for it (of the process that serves
the connection; nothing else on the machine is in it). Times how often an idle worker asks each, and
`--many` of them: `cores` of the server that they keep busy.

Then `--workers` threads with a connection each ask as idle workers do, for `--seconds`.
`cores_measured` is the processor time of all of the server's processes meanwhile, by the second;
beside it what the first part says for as many. Now and then a task becomes ready: `claimed_after`
is how long it waits, the longest and the median. The last line is one JSON object.
"""

import argparse
import functools
import json
import os
import random
import statistics
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.long_run import grow
from support.servers import server_at

from dipaco.control.claims.queue import ALL_KINDS, LEASE_SECONDS
from dipaco.control.ledger import Ledger, open_ledger
from dipaco.workers.heartbeat import heartbeat_seconds
from dipaco.workers.loop import LEAST_SHARE, MAX_WAIT_SECONDS

WAIT_SECONDS = MAX_WAIT_SECONDS * (1 + LEAST_SHARE) / 2  # on average, once it has been idle a while
HEARTBEAT_SECONDS = heartbeat_seconds(LEASE_SECONDS)


def summary(ledger: Ledger) -> None:
    ledger.meta.work_summary(ALL_KINDS)


def beat(ledger: Ledger) -> None:
    ledger.members.heartbeat("worker 7", "7")
    ledger.meta.command()


def look_for_silent_workers(ledger: Ledger) -> None:
    ledger.reaper.reap("worker 7")


def look_for_late_tasks(ledger: Ledger) -> None:
    ledger.queue.claim_backup("idle")


# Question -> how often an idle worker asks it, a second. For silent workers look its loop and its
# heartbeat.
QUESTIONS: dict[str, tuple[Callable[[Ledger], None], float]] = {
    "work_summary": (summary, 1 / WAIT_SECONDS),
    "heartbeat": (beat, 1 / HEARTBEAT_SECONDS),
    "silent workers": (look_for_silent_workers, 2 / HEARTBEAT_SECONDS),
    "late tasks": (look_for_late_tasks, 1 / LEASE_SECONDS),
}


def main() -> None:
    options = parse()
    with server_at(options.database, max_connections=options.workers + 50) as url:
        assert url is not None
        place = (url, f"bench_{uuid.uuid4().hex[:12]}")
        with open_ledger(*place) as ledger:
            grow(ledger, options.phases, max(options.many, 255))
            answer = cost(ledger, options) | threads(ledger, place, options)
    print(json.dumps(answer))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--phases", type=int, default=100, help="that the run has behind it")
    parser.add_argument("--many", type=int, default=4096, help="idle workers, computed")
    parser.add_argument("--times", type=int, default=300, help="that each question is asked")
    parser.add_argument("--workers", type=int, default=256, help="threads that ask")
    parser.add_argument("--seconds", type=float, default=20.0, help="for which they do")
    parser.add_argument("--database", default="postgresql")
    return parser.parse_args()


def cost(ledger: Ledger, options: argparse.Namespace) -> dict[str, Any]:
    """Processor time of each question, and of many workers that ask them."""
    process = ledger._database.select("SELECT pg_backend_pid()")[0][0]
    cpu_ms, cores = {}, {}
    for what, (ask, often) in QUESTIONS.items():
        ask(ledger)
        before = cpu_seconds(process)
        for _ in range(options.times):
            ask(ledger)
        cpu_ms[what] = round(1e3 * (cpu_seconds(process) - before) / options.times, 4)
        cores[what] = round(options.many * often * cpu_ms[what] / 1e3, 3)
        print(f"{what:16} {cpu_ms[what]:7.3f} ms, {often:6.3f} a second and worker: "
              f"{cores[what]:.2f} cores for {options.many:,}", flush=True)  # fmt: skip
    return {
        "idle_workers": options.many,
        "cpu_ms": cpu_ms,
        "cores_by_question": cores,
        "cores": round(sum(cores.values()), 3),
    }


def cpu_seconds(process: int) -> float:
    """That a process of this machine has had."""
    return int(Path(f"/proc/{process}/schedstat").read_text().split()[0]) / 1e9


def threads(ledger: Ledger, place: tuple[str, str], options: argparse.Namespace) -> dict[str, Any]:
    """Idle workers on connections of their own."""
    begun, over = threading.Barrier(options.workers + 1), threading.Event()
    claimed: dict[str, float] = {}
    work = functools.partial(idle_worker, place, begun, over, claimed)
    crew = [threading.Thread(target=work, args=(n,)) for n in range(options.workers)]
    for each in crew:
        each.start()
    begun.wait()
    time.sleep(2 * MAX_WAIT_SECONDS)  # until their waits have grown
    server = ledger._database.select(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() OR datname IS NULL"
    )
    began = time.monotonic()
    before = sum(cpu_seconds(process) for (process,) in server)
    waits = []
    while time.monotonic() < began + options.seconds:
        waits.append(one_task(ledger, claimed, len(waits)))
        time.sleep(random.uniform(0.5, 1.0))
    seconds = time.monotonic() - began
    cores = (sum(cpu_seconds(process) for (process,) in server) - before) / seconds
    over.set()
    for each in crew:
        each.join()
    print(
        f"{options.workers} threads: {cores:.3f} cores of the server; a new task is claimed after "
        f"{statistics.median(waits):.2f} s, {max(waits):.2f} s at most, of {len(waits)}"
    )
    return {
        "threads": options.workers,
        "cores_measured": round(cores, 4),
        "claimed_after": {
            "median": round(statistics.median(waits), 3), "most": round(max(waits), 3),
            "tasks": len(waits),
        },
    }  # fmt: skip


def idle_worker(place: Any, begun: Any, over: Any, claimed: dict[str, float], number: int) -> None:
    """Asks what the loop of a worker and its heartbeat ask, as often."""
    name, next_beat = f"worker {number}", random.uniform(0, HEARTBEAT_SECONDS)
    next_late = random.uniform(0, LEASE_SECONDS)
    with open_ledger(*place) as ledger:
        begun.wait()
        began = time.monotonic()
        while not over.is_set():
            now = time.monotonic() - began
            if ledger.meta.work_summary(ALL_KINDS).has_ready:
                claim = ledger.queue.claim(name)
                if claim is not None:
                    claimed[claim.task.subject] = time.monotonic()
            if now > next_beat:
                next_beat = now + HEARTBEAT_SECONDS
                ledger.members.heartbeat(name, str(number))
                ledger.meta.command()
                ledger.reaper.reap(name)
                ledger.reaper.reap(name)
            if now > next_late:
                next_late = now + LEASE_SECONDS
                ledger.queue.claim_backup(name)
            over.wait(MAX_WAIT_SECONDS * random.uniform(LEAST_SHARE, 1.0))


def one_task(ledger: Ledger, claimed: dict[str, float], number: int) -> float:
    """Makes a task ready; the seconds until a thread has claimed it."""
    subject = f"bench {number}"
    began = time.monotonic()
    with ledger._database.transaction():
        ledger._database.change(
            "add_task", kind="score", arm="modular", subject=subject, phase=0, priority=5
        )
    while subject not in claimed:
        time.sleep(0.005)
    return claimed[subject] - began


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    main()
