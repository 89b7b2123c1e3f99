"""Compares the bits of killed workers that share a device with one undisturbed process.

    python tools/same_bits.py configs/quickstart.py --workers 4
    python tools/same_bits.py configs/quickstart.py --flags=--xla_gpu_deterministic_ops=false
    python tools/same_bits.py configs/toy.py --workers 2 --set phases=3          # on any CPU

Trains a run twice in one process each, and once by `dipaco launch --devices-per-worker 1`, where a
worker is killed (SIGKILL) after each of so many tasks. All three start with the environment's
`XLA_FLAGS` and the flags of `--flags`. The digests of every module at every phase are compared. The
last line is one JSON object. A difference between the two plain runs says that the device does not
repeat its bits. A difference of the third run alone says that sharing the device or starting again
changes them. On a GPU `dipaco` asks for equal bits by itself, and
`--flags=--xla_gpu_deterministic_ops=false` takes that away.
"""

import argparse
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from support.command_line import parser_of

from dipaco.config import MODULAR
from dipaco.runs.opening import reading

LOOK_SECONDS = 0.05


def main() -> None:
    options = parse()
    flags = " ".join([os.environ.get("XLA_FLAGS", ""), *options.flags]).strip()
    launched = ["launch", "--workers", str(options.workers), "--devices-per-worker", "1"]
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="bits-") as name:
        runs = {which: Path(name, which) for which in ("first", "second", "killed")}
        for which, run in runs.items():
            started = time.perf_counter()
            words = launched if which == "killed" else ["train"]
            process = begin(options, run, words, {**os.environ, "XLA_FLAGS": flags})
            kills = kill(process, run, options.kill_after) if which == "killed" else 0
            if process.wait():
                sys.exit(run.with_suffix(".log").read_text())
            seconds[which] = round(time.perf_counter() - started, 1)
        of = {which: digests(run) for which, run in runs.items()}
    different = {
        f"{a} and {b}": sum(of[a][module] != of[b][module] for module in of[a])
        for a, b in itertools.combinations(of, 2)
    }
    answer = {"flags": flags, "modules": len(of["first"]), "different": different}
    print(json.dumps({**answer, "seconds": seconds, "kills": kills}))


def parse() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("config")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--set", action="append", default=[], metavar="K=V", help="as of train")
    parser.add_argument("--flags", action="append", default=[], metavar="FLAG", help="of XLA")
    parser.add_argument(
        "--kill-after",
        type=lambda text: [int(word) for word in text.split(",")],
        default=[1, 3],
        metavar="N,M",
        help="tasks of training that were recorded before each kill (1,3)",
    )
    return parser.parse_args()


def begin(options, run: Path, words: list[str], environment: dict[str, str]) -> subprocess.Popen:
    verb, *more = words
    sets = [word for pair in options.set for word in ("--set", pair)]
    command = [sys.executable, "-m", "dipaco.cli.main", verb, options.config, "--run", str(run)]
    with run.with_suffix(".log").open("w") as log:
        return subprocess.Popen([*command, *more, *sets], stdout=log, stderr=log, env=environment)


def kill(launcher: subprocess.Popen, run: Path, after: list[int]) -> int:
    """Kills a worker each time that so many training tasks are recorded, and returns the number of
    kills.
    """
    kills = 0
    for number in after:
        while launcher.poll() is None:
            if sum(map(len, ends_of_phases(run / "events.jsonl").values())) >= number:
                break
            time.sleep(LOOK_SECONDS)
        if workers := workers_of(launcher.pid):
            os.kill(workers[kills % len(workers)], signal.SIGKILL)
            kills += 1
    return kills


def workers_of(launcher: int) -> list[int]:
    """Processes of `dipaco worker` under a launcher, oldest first."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_text().split("\0")
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == launcher and "worker" in words:
            found.append(int(folder.name))
    return sorted(found)


def ends_of_phases(events: Path) -> dict[int, list[float]]:
    """Phase, counted from one -> when each of its paths ended."""
    ends: dict[int, list[float]] = {}
    for line in events.read_text().splitlines(keepends=True) if events.exists() else ():
        if not line.endswith("\n"):
            break  # it is being written
        event = json.loads(line)
        if event["event"] == "path_trained" and event["arm"] == MODULAR:
            ends.setdefault(event["phase"], []).append(event["time"])
    return ends


def digests(folder: Path) -> dict[str, str]:
    """Digests of every module at every phase."""
    with reading(folder) as run:
        return {
            f"{module} at {phase}": receipt.digest
            for phase in range(run.plan.arm(MODULAR).phases + 1)
            for module, receipt in run.ledger.facts.receipts_at(MODULAR, phase).items()
        }


if __name__ == "__main__":
    main()
