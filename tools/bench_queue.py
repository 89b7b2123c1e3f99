"""Claim + finish of tasks per second, with many claimers, on SQLite and on PostgreSQL.

    python tools/bench_queue.py --claimers 1 8 64 --seconds 10
    python tools/bench_queue.py --database postgresql://HOST/NAME --finished 1000000
    python tools/bench_queue.py --history 10 100 1000 --database postgresql

Every claimer is a process with its own connection. It claims a task and finishes it with the fact
of one contribution, 64 to a module, of which the last makes the module's outer step due. A finished
task outlives a power cut. `longest wait` is the longest that one claim took. `--finished N` puts N
finished tasks into the ledger first, since old tasks must not slow down new ones. Both databases
are measured in the same call, one after the other, each round with a fresh ledger.

`--history N` measures the questions that a run of 256 paths and 289 modules is asked again and
again after N phases, while 255 paths are claimed and nothing is ready. An idle worker takes *a
summary* every one or two seconds, tries *a claim* if the summary shows a ready task, and looks for
*late tasks* once a lease. Every worker sends a *heartbeat* and looks for *silent workers* as often.
A busy worker asks for *renewal*. *Launcher*, *monitor* and *metrics* are one poll, one look and one
scrape. In the last line, `idle_look_ms` is the dearest look of an idle worker, in which all of its
questions fall together.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.command_line import parser_of
from support.scratch import scratch
from support.servers import server_at

from dipaco.control.claims.queue import ALL_KINDS
from dipaco.control.ledger import Ledger, open_ledger
from dipaco.control.planning.tasks import Claim, Contribution, Task
from dipaco.receipt import Receipt
from dipaco.schedule.arm import Arm
from dipaco.schedule.plan import BASE, Plan, one_path
from dipaco.topology import Level, Topology

FAN_IN, MODULES = 64, 512
PATHS, SHARED = 256, 33  # A long run's paths, and its modules that several paths share.
TOPOLOGY = Topology(
    levels=(
        Level(name="all", parts=("embed",), experts=MODULES),
        Level(name="replica", experts=FAN_IN),
    )
)


def arm(name: str, topology: Topology) -> Arm:
    return Arm(
        name=name, topology=topology, phases=10**6, total_steps=10**6, has_outer_steps=True,
        evaluate_every=10**6,
    )  # fmt: skip


PLAN = Plan(base=arm(BASE, one_path(("embed",))), arms=(arm("modular", TOPOLOGY),))


def main() -> None:
    options = parse()
    with server_at(options.database) as url:
        measure(options, {"sqlite": None} | ({"postgresql": url} if url else {}))


def measure(options: argparse.Namespace, places: dict[str, Any]) -> None:
    """Prints everything that is asked for, of ledgers at these places."""
    if options.history:
        print(json.dumps(compare_histories(places, options)))
        return
    results: dict[str, Any] = {name: {} for name in places}
    print(f"{'database':12} {'claimers':>8} {'tasks/s':>9} {'longest wait':>13} {'finished':>10}")
    for claimers in options.claimers:
        for name, url in places.items():
            rates, waits = [], []
            for _ in range(options.rounds):
                with scratch(options.folder, "queue-") as folder:
                    place = place_of(url, folder)
                    rate, wait = one_round(place, claimers, options.seconds, options.finished)
                rates.append(rate)
                waits.append(wait)
            rate, wait = statistics.median(rates), max(waits)
            results[name][str(claimers)] = {"tasks_per_second": rate, "longest_wait_seconds": wait}
            print(f"{name:12} {claimers:8} {rate:9,.0f} {wait:11.2f} s {options.finished:10,}")
    print(json.dumps(results))


def place_of(url: str | None, folder: Path) -> tuple[Path | str, str]:
    """The place of a new ledger, on the server or in the folder."""
    return (url, f"bench_{uuid.uuid4().hex[:12]}") if url else (folder / "ledger.sqlite", "")


def parse() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--claimers", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--seconds", type=float, default=5.0, help="of each round")
    parser.add_argument("--rounds", type=int, default=3, help="the median is shown")
    parser.add_argument("--finished", type=int, default=0, help="finished tasks there already")
    parser.add_argument("--history", type=int, nargs="+", help="phases: what is asked of such runs")
    parser.add_argument(
        "--database", default=os.environ.get("DIPACO_BENCH_DATABASE"),
        help="postgresql = one started here; postgresql://...; else SQLite alone is measured",
    )  # fmt: skip
    parser.add_argument("--folder", help="of SQLite's file; its disk decides what a commit costs")
    return parser.parse_args()


def one_round(place: Any, claimers: int, seconds: float, finished: int) -> tuple[float, float]:
    """Tasks per second of all claimers together, and the longest wait for a claim, seconds."""
    TOPOLOGY.fan_in(TOPOLOGY.modules_of(0)[0])  # worked out once, before the processes part
    with open_ledger(*place) as ledger:
        fill(ledger, finished, ready=FAN_IN * MODULES)
    context = multiprocessing.get_context("fork")
    barrier, answers = context.Barrier(claimers), context.Queue()
    arguments = (place, seconds, barrier, answers)
    processes = [
        context.Process(target=claimer, args=(number, *arguments)) for number in range(claimers)
    ]
    for process in processes:
        process.start()
    counts, waits = zip(*(answers.get(timeout=seconds + 60) for _ in processes), strict=True)
    for process in processes:
        process.join()
    return sum(counts) / seconds, max(waits)


def fill(ledger: Ledger, finished: int, ready: int) -> None:
    """Tasks of phase 0 that are done, and of phase 1 that are ready."""
    execute = ledger._database._connection.execute  # ty: ignore[missing-attribute]
    for phase, state, number in ((0, "done", finished), (1, "ready", ready)):
        if number:
            execute(
                f"WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < "
                f"{number - 1}) INSERT INTO tasks (kind, arm, subject, phase, priority, state) "
                f"SELECT 'train', 'modular', CAST(i AS TEXT), {phase}, 6, '{state}' FROM n"
            )
    execute("ANALYZE")  # A server does this by itself after a minute.


def claimer(number: int, place: Any, seconds: float, barrier: Any, answers: Any) -> None:
    """Claims and finishes until the time is over."""
    count, longest = 0, 0.0
    with open_ledger(*place) as ledger:
        barrier.wait()
        until = time.monotonic() + seconds
        while (began := time.monotonic()) < until:
            claim = ledger.queue.claim(f"claimer {number}", ("train",))
            longest = max(longest, time.monotonic() - began)
            assert claim is not None, "there were too few tasks: ask for fewer seconds"
            ledger.commit.finish(PLAN, claim, [fact_of(claim.task)])
            count += 1
    answers.put((count, longest))


def compare_histories(places: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Database -> phases -> question -> milliseconds."""
    results: dict[str, Any] = {name: {} for name in places}
    idle: dict[str, Any] = {name: {} for name in places}
    names = [*QUESTIONS, "renewal"]
    print(f"{'database':12} {'phases':>7} " + " ".join(f"{name:>14}" for name in names))
    for name, url in places.items():
        for phases in options.history:
            with (
                scratch(options.folder, "queue-") as folder,
                open_ledger(*place_of(url, folder)) as ledger,
            ):
                claim = grow(ledger, phases)[7]
                questions = QUESTIONS | {"renewal": lambda at, own=claim: at.queue.renew(own)}
                answers = {what: milliseconds(ask, ledger) for what, ask in questions.items()}
            results[name][str(phases)] = answers
            idle[name][str(phases)] = round(sum(answers[what] for what in OF_IDLE), 3)
            cells = " ".join(f"{value:11.2f} ms" for value in answers.values())
            print(f"{name:12} {phases:7,} {cells}", flush=True)
    return {
        "idle_look_ms": idle,
        "idle_look_growth": {
            name: round(max(of.values()) / of[str(options.history[0])], 2)
            for name, of in idle.items()
        },
        "milliseconds": results,
    }


def grow(ledger: Ledger, phases: int, workers: int = PATHS) -> list[Claim]:
    """Fills a new ledger with a run of 256 paths that has so many phases behind it.

    In the next phase 255 paths are claimed and one is waiting, so that nothing is ready. Returns
    the claims of the first workers.
    """
    execute = ledger._database._connection.execute  # ty: ignore[missing-attribute]

    def add(table: str, columns: str, rows: int, values: str) -> None:
        execute(
            f"INSERT INTO {table} ({columns}) WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL "
            f"SELECT i + 1 FROM n WHERE i < {rows - 1}) SELECT {values} FROM n"
        )

    def add_tasks(kind: str, rows: int, phase: int, priority: int, state: str) -> None:
        columns = "kind, arm, subject, phase, priority, state"
        values = f"'{kind}', 'modular', CAST(i AS TEXT), {phase}, {priority}, '{state}'"
        add("tasks", columns, rows, values)

    modules = PATHS + SHARED
    trained = "arm, path, phase, name, digest, num_bytes, step, batches, losses, tokens, seconds, "
    for phase in range(phases):
        add_tasks("train", PATHS, phase, 8, "done")
        add_tasks("outer", modules, phase, 3, "done")
        values = f"'modular', i, {phase}, '', '', 8, 1, '', '[1.0]', 100, 600.0, 8, 8, ''"
        add("trained", f"{trained} bytes_down, bytes_up, machine", PATHS, values)
        values = f"'modular', CAST(i AS TEXT), {phase}, '', '', 8"
        add("modules", "arm, module, phase, name, digest, num_bytes", modules, values)
    add_tasks("train", PATHS, phases, 8, "ready")
    here = "name, host, pid, life, machine, version, state, epoch, joined, heartbeat"
    values = "'worker ' || i, 'host', i, CAST(i AS TEXT), 'm', '0', 'here', 'e', 0, 0"
    add("workers", here, workers, values)
    claims = [ledger.queue.claim(f"worker {number}") for number in range(PATHS - 1)]
    execute("UPDATE tasks SET state = 'waiting' WHERE state = 'ready'")
    if ledger._database.is_remote:
        execute("VACUUM ANALYZE")  # A server does this by itself after a minute.
    return [claim for claim in claims if claim is not None]


def milliseconds(ask: Callable[[Ledger], Any], ledger: Ledger) -> float:
    """The quickest of 50 times, since others may be using this machine."""
    times = []
    for _ in range(50):
        began = time.perf_counter()
        ask(ledger)
        times.append(1000 * (time.perf_counter() - began))
    return min(times)


def summary(ledger: Ledger) -> None:
    assert not ledger.meta.work_summary(ALL_KINDS).has_ready


def claim(ledger: Ledger) -> None:
    assert ledger.queue.claim("idle") is None


def beat(ledger: Ledger) -> None:
    ledger.members.heartbeat("worker 7", "7")
    ledger.meta.command()


def look_for_silent_workers(ledger: Ledger) -> None:
    ledger.reaper.reap("worker 7")


def look_for_late_tasks(ledger: Ledger) -> None:
    assert ledger.queue.claim_backup("idle") is None


def poll(ledger: Ledger) -> None:
    ledger.queue.is_finished()
    ledger.failures.stuck()
    ledger.meta.command()
    ledger.meta.desired_workers("launcher")


def monitor(ledger: Ledger) -> None:
    ledger.reaper.reap()
    ledger.queue.unfinished()
    ledger.members.list()


def scrape(ledger: Ledger) -> None:
    with ledger.at_one_moment():
        ledger.queue.task_counts()
        ledger.progress.tokens_by_arm()
        ledger.progress.bytes_by_kind()
        ledger.progress.newest_modules()
        ledger.progress.training_totals("modular")


QUESTIONS = {
    "a summary": summary,
    "a claim": claim,
    "heartbeat": beat,
    "silent workers": look_for_silent_workers,
    "late tasks": look_for_late_tasks,
    "launcher": poll,
    "monitor": monitor,
    "metrics": scrape,
}
# All of them fall together in one look, at worst.
OF_IDLE = ("a summary", "silent workers", "late tasks")


def fact_of(task: Task) -> Contribution:
    receipt = Receipt(f"objects/messages/{task.subject}", uuid.uuid4().hex, 1)
    return Contribution(
        arm="modular", path=task.path, module=TOPOLOGY.modules_of(task.path)[0], phase=task.phase,
        base_digest="", message=receipt,
    )  # fmt: skip


if __name__ == "__main__":
    main()
