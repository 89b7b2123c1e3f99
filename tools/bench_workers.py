"""Several workers on this machine against one process: the same training, in steady state.

    python tools/bench_workers.py --workers 4 --pairs 3

Each pair is `dipaco train CONFIG` and `dipaco train CONFIG --workers N`, in turn, in folders of
their own, programs compiled before. What is compared is the time from the moment when all paths
have been trained through the first `--warm` phases, and all workers are there, to the last phase of
the last path: no process starts in it, and nothing is compiled. CPU seconds of all processes stand
beside it, since other work on the machine slows one process more than four. Then the digest of
every module at every phase, which must be equal. The last line is one JSON object.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from support.cpu_seconds import cpu_seconds_of
from support.paired_ratio import median_and_interval

from dipaco.config import MODULAR
from dipaco.runs.opening import reading

PATHS = 4
LOOK_SECONDS = 0.1
HOME = Path(__file__).parents[1]
CONFIG = '''"""The toy run with a larger model: a phase of a path takes some seconds."""

import dataclasses
from pathlib import Path

from dipaco.config import BaseSettings
from dipaco.overrides import load_config

TOY = load_config(Path({configs!r}) / "toy.py")
QUICKSTART = load_config(Path({configs!r}) / "quickstart.py")


def run():
    return dataclasses.replace(
        TOY,
        name="workers",
        model=dataclasses.replace(QUICKSTART.model, d_model=128, d_ff=384),
        topology=QUICKSTART.topology,
        data=dataclasses.replace(
            TOY.data,
            sources=("toy:?clusters=4&documents=800&words=120",),
            vocab_size=2048,
            length=128,
        ),
        base=BaseSettings(steps=2, steps_per_phase=2),
        phases={phases},
        inner=dataclasses.replace(TOY.inner, steps={steps}, batch_size=16, learning_rate=1e-3),
        evaluation=dataclasses.replace(TOY.evaluation, every_phases={phases}, best_path=False),
        baselines=(),
    )
'''


def main() -> None:
    options = parse()
    with tempfile.TemporaryDirectory(prefix="workers-") as folder:
        config = Path(folder, "config.py")
        config.write_text(
            CONFIG.format(configs=str(HOME / "configs"), phases=options.phases, steps=options.steps)
        )
        train(config, Path(folder, "warm"), 1, 1, "--set", "phases=1", "--set", "inner.steps=2")
        pairs = []
        for number in range(options.pairs):
            runs = {n: Path(folder, f"{number}-{n}") for n in (1, options.workers)}
            one, several = (train(config, run, n, options.warm) for n, run in runs.items())
            is_equal = digests(runs[1]) == digests(runs[options.workers])
            pairs.append((one, several, is_equal))
            print(
                f"one process {one.seconds:.1f} s ({one.cpu_seconds:.1f} s of CPU), "
                f"{options.workers} workers {several.seconds:.1f} s ({several.cpu_seconds:.1f}): "
                f"{several.seconds / one.seconds:.2f}; digests {'equal' if is_equal else 'DIFFER'}",
                flush=True,
            )
    ratio, low, high = median_and_interval(
        [several.seconds / one.seconds for one, several, _ in pairs]
    )
    cpu_ratio, *_ = median_and_interval(
        [several.cpu_seconds / one.cpu_seconds for one, several, _ in pairs]
    )
    answer = {
        "workers": options.workers,
        "cpus": len(os.sched_getaffinity(0)),
        "phases": options.phases - options.warm,
        "ratio": round(ratio, 3),
        "interval": [round(low, 3), round(high, 3)],
        "cpu_ratio": round(cpu_ratio, 3),
        "pairs": len(pairs),
        "digest_equal": all(is_equal for *_, is_equal in pairs),
    }
    print(json.dumps(answer))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--phases", type=int, default=6)
    parser.add_argument("--warm", type=int, default=3, help="phases that do not count")
    parser.add_argument("--steps", type=int, default=15, help="inner steps of a phase")
    options = parser.parse_args()
    if options.workers < 2:
        parser.error(f"--workers is {options.workers}; expected 2 or more")
    if not 0 < options.warm < options.phases:
        parser.error(f"--warm is {options.warm}; expected 1 to {options.phases - 1}")
    return options


class Cost(NamedTuple):
    """What the steady part of a training took."""

    seconds: float
    cpu_seconds: float  # of all its processes


def train(config: Path, run: Path, workers: int, warm: int, *more: str) -> Cost:
    """Does a run; what it took from the last end of a path's phase `warm` to the last of all."""
    words = ["train", str(config), "--run", str(run), "--workers", str(workers), *more]
    log = run.with_suffix(".log")
    with log.open("w") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "dipaco.cli.main", *words], stdout=stream, stderr=stream
        )
    cpu_at: dict[int, float] = {}  # phase -> when the last path of it was seen to have ended
    ends: dict[int, list[float]] = {}
    while process.poll() is None:
        ends = ends_of_phases(run / "events.jsonl")
        for phase, times in ends.items():
            if len(times) == PATHS and phase not in cpu_at:
                cpu_at[phase] = cpu_seconds_of(process.pid)
        time.sleep(LOOK_SECONDS)
    if process.returncode:
        sys.exit(log.read_text())
    last = max(ends)
    return Cost(max(ends[last]) - max(ends[warm]), cpu_at[last] - cpu_at[warm])


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
    """Of every module at every phase."""
    with reading(folder) as run:
        return {
            f"{module} at {phase}": receipt.digest
            for phase in range(run.plan.arm(MODULAR).phases + 1)
            for module, receipt in run.ledger.facts.receipts_at(MODULAR, phase).items()
        }


if __name__ == "__main__":
    main()
