"""Measures the cost of an open dashboard for a run, and the speed of its page.

    python tools/bench_dashboard.py --live configs/quickstart.py --seconds 60
    python tools/bench_dashboard.py --cost s3://bucket/run --seconds 60
    python tools/bench_dashboard.py --phases 1000

`--cost RUN` keeps a reader of the run for `--seconds`, as open pages do, while the run goes on.
`share` is the part of one core that the reader takes, without its first read. `questions` counts
its statements to the ledger in a second. `--live CONFIG` starts such a run itself and measures from
its first phase on. `run` is then the part of one core that the run takes.

`--phases N` makes up the ledger of a run of 256 paths with private parts and N phases. `read` is
the processor time of the first read, `memory` the process's memory after it and after ten more
pages, and `megabytes` the size of the recording. `paint` and `jump` are seconds on the wall clock
in Chromium, from an address to the grid, and to show another moment (the median of nine).
"""

import json
import resource
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from support.chromium import chromium
from support.command_line import parser_of
from support.made_up_run import make_run
from support.process_cost import cpu_seconds_of
from support.scratch import scratch

from dipaco.config import MODULAR
from dipaco.control.database.sqlite import SQLite
from dipaco.control.ledger import Ledger
from dipaco.dashboard.watcher import Watcher
from dipaco.runs.errors import NoSuchRun
from dipaco.runs.opening import reading
from dipaco.store.address import Address


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--cost", metavar="RUN", help="a run's folder or URL")
    parser.add_argument("--live", metavar="CONFIG", type=Path, help="of a run that is started here")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--phases", type=int)
    parser.add_argument("--folder", help="of a run made with --phases before, or for it")
    options = parser.parse_args()
    if options.cost:
        print(json.dumps(cost(Address.parse(options.cost), options.seconds)))
    if options.live:
        with scratch(None, "dashboard-") as folder:
            print(json.dumps(live(options.live, folder / "run", options.seconds)))
    if options.phases:
        with scratch(None, "dashboard-") as folder:
            place = Path(options.folder) if options.folder else folder / "run"
            if not place.exists():
                make_run(place, options.phases)
            print(json.dumps(page(Address.of(place))))


def cost(address: Address, seconds: float) -> dict[str, Any]:
    """The cost of one reader, which is the same for any number of pages."""
    asked = count_questions()
    watcher = Watcher(address)
    watcher.start()
    watcher.recording()
    changes = [0]

    def listen() -> None:
        changes[0] += 1

    with watcher.opened(listen):
        before, began, first = asked[0], time.monotonic(), time.process_time()
        time.sleep(seconds)
        wall = time.monotonic() - began
        taken = time.process_time() - first
    watcher.stop()
    return {
        "share": round(taken / wall, 5),
        "questions": round((asked[0] - before) / wall, 3),
        "changes": changes[0],
        "seconds": round(wall, 1),
    }


def live(config: Path, folder: Path, seconds: float) -> dict[str, Any]:
    """The same of a run that goes on beside it."""
    command = [sys.executable, "-m", "dipaco.cli.main", "train", str(config), "--run", str(folder)]
    with (folder.parent / "log").open("w") as log:
        training = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        while not _has_trained(folder):
            if training.poll() is not None:
                raise SystemExit((folder.parent / "log").read_text()[-2000:])
            time.sleep(0.2)
        before = cpu_seconds_of(training.pid)
        answer = cost(Address.of(folder), seconds)
        if training.poll() is not None:
            raise SystemExit("The run ended before it was measured: give fewer --seconds.")
        run = (cpu_seconds_of(training.pid) - before) / answer["seconds"]
    finally:
        training.terminate()
        training.wait()
    return {**answer, "run": round(run, 3)}


def _has_trained(folder: Path) -> bool:
    """True once a path of the modular model has gone through a phase."""
    if not (folder / "ledger.sqlite").exists():
        return False
    try:
        with reading(folder) as run:
            return bool(run.ledger.facts.trained(MODULAR, 0))
    except NoSuchRun:  # just being made
        return False


def count_questions() -> list[int]:
    """Counts every statement that this process sends to a ledger."""
    from dipaco.control.database.postgresql import PostgreSQL

    asked = [0]
    for database, name in ((SQLite, "_execute"), (PostgreSQL, "_execute"), (Ledger, "select")):
        plain = getattr(database, name)

        def counted(*arguments: Any, _plain: Any = plain, **values: Any) -> Any:
            asked[0] += 1
            return _plain(*arguments, **values)

        setattr(database, name, counted)
    return asked


def page(address: Address) -> dict[str, Any]:
    """Reads a run and shows its page in a browser."""
    import uvicorn

    from dipaco.dashboard.server import make_app
    from dipaco.serving.http.server import http_config, listen

    watcher = Watcher(address)
    began = time.process_time()
    watcher.start()
    size = len(watcher.recording())
    read, memory = time.process_time() - began, [held_megabytes()]
    with listen("127.0.0.1", 0) as listening, chromium() as browser:
        server = uvicorn.Server(http_config(make_app(watcher)))
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        paints, jumps = [], []
        for _ in range(10):
            tab = browser.new_page(viewport={"width": 1400, "height": 900})
            began = time.monotonic()
            tab.goto(f"http://127.0.0.1:{listening.getsockname()[1]}/")
            tab.locator(".cell").first.wait_for()
            paints.append(time.monotonic() - began)
            took = "share => { const t = performance.now(); goTo(share * run.end); "
            took += "document.body.offsetHeight; return performance.now() - t }"
            jumps.append(tab.evaluate(took, 0.1 + 0.08 * len(jumps)) / 1000)
            tab.close()
        memory.append(held_megabytes())
        server.force_exit = server.should_exit = True
        thread.join()
    watcher.stop()
    return {
        "read": round(read, 2),
        "megabytes": round(size / 1e6, 1),
        "memory": memory,
        "paint": round(statistics.median(paints), 2),
        "jump": round(statistics.median(jumps[1:]), 3),
    }


def held_megabytes() -> int:
    """The most memory that this process has held so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1000


if __name__ == "__main__":
    main()
