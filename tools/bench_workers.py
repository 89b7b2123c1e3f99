"""Several workers on this machine against one process: the same training, in steady state.

    python tools/bench_workers.py --workers 4 --pairs 3

Each pair is `dipaco train CONFIG` and `dipaco train CONFIG --workers N`, in turn, in folders of
their own, programs compiled before. What is compared is the time from the moment when all paths
have been trained through the first `--warm` phases, and all workers are there, to the last phase of
the last path: no process starts in it, and nothing is compiled. Then the digest of every module at
every phase, which must be equal. The last line is one JSON object.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from pairs import median_and_interval

from dipaco.config import MODULAR
from dipaco.runs.run import reading

CONFIG = '''"""2x2 paths on the toy corpus, a phase of a path takes some seconds."""

from dipaco.config import BaseSettings, EvaluationSettings, RunConfig
from dipaco.data.config import DataConfig
from dipaco.inner.config import InnerSettings
from dipaco.model.config import ModelConfig
from dipaco.topology import Level, Topology


def run() -> RunConfig:
    return RunConfig(
        name="workers",
        model=ModelConfig(
            vocab_size=2048, d_model=128, num_layers=4, num_heads=4, d_ff=384, max_length=128
        ),
        topology=Topology(
            levels=(
                Level(name="early", parts=("embed", "block_00", "block_01"), experts=2),
                Level(
                    name="late", parts=("block_02", "block_03", "final_norm", "head"), experts=2
                ),
            )
        ),
        data=DataConfig(
            sources=("toy:?clusters=4&documents=800&words=120",),
            vocab_size=2048,
            length=128,
            valid_fraction=0.1,
            router_fraction=0.2,
            processes=1,
        ),
        base=BaseSettings(steps=2, steps_per_phase=2),
        phases={phases},
        inner=InnerSettings(steps={steps}, batch_size=16, learning_rate=1e-3, warmup_steps=1),
        evaluation=EvaluationSettings(batch_size=16, every_phases={phases}, best_path=False),
        baselines=(),
    )
'''


def main() -> None:
    options = parse()
    with tempfile.TemporaryDirectory(prefix="workers-") as folder:
        config = Path(folder, "config.py")
        config.write_text(CONFIG.format(phases=options.phases, steps=options.steps))
        train(config, Path(folder, "warm"), 1, "--set", "phases=1", "--set", "inner.steps=1")
        pairs = []
        for number in range(options.pairs):
            runs = [Path(folder, f"{number}-{workers}") for workers in (1, options.workers)]
            for run, workers in zip(runs, (1, options.workers), strict=True):
                train(config, run, workers)
            one, several = (steady_seconds(run, options.warm) for run in runs)
            is_equal = digests(runs[0]) == digests(runs[1])
            pairs.append((one, several, is_equal))
            print(
                f"one process {one:.1f} s, {options.workers} workers {several:.1f} s: "
                f"{several / one:.2f}; digests {'equal' if is_equal else 'DIFFER'}",
                flush=True,
            )
    ratio, low, high = median_and_interval([several / one for one, several, _ in pairs])
    answer = {
        "workers": options.workers,
        "cpus": len(os.sched_getaffinity(0)),
        "phases": options.phases - options.warm,
        "ratio": round(ratio, 3),
        "interval": [round(low, 3), round(high, 3)],
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
    if not 0 < options.warm < options.phases:
        parser.error(f"--warm is {options.warm}; expected 1 to {options.phases - 1}")
    return options


def train(config: Path, run: Path, workers: int, *more: str) -> None:
    words = ["train", str(config), "--run", str(run), "--workers", str(workers), *more]
    done = subprocess.run(
        [sys.executable, "-m", "dipaco.cli.main", *words], capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(done.stdout + done.stderr)


def steady_seconds(run: Path, warm: int) -> float:
    """From the last path's end of phase `warm` to the last path's end of the last phase."""
    ends: dict[int, float] = {}
    for line in (run / "events.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "path_trained" and event["arm"] == MODULAR:
            ends[event["phase"]] = max(ends.get(event["phase"], 0.0), event["time"])
    return ends[max(ends)] - ends[warm]


def digests(folder: Path) -> dict[str, str]:
    """Of every module at every phase."""
    with reading(folder) as run:
        return {
            f"{module} at {phase}": receipt.digest
            for phase in range(run.plan.arm(MODULAR).phases + 1)
            for module, receipt in run.ledger.receipts_at(MODULAR, phase).items()
        }


if __name__ == "__main__":
    main()
