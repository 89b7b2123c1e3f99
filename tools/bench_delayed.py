"""Measures the loss that gradients cost when they are one step late. One path of the swarm's storm
is trained by plain AdamW, by the oracle of delayed updates, and by that oracle without its
prediction, on the same rows in the same order.

    python tools/bench_delayed.py --steps 300
    python tools/bench_delayed.py --steps 300 --d-model 224        a path of a million values
    python tools/bench_delayed.py --steps 150 --config configs/quickstart.py       real text

No volunteers are needed, since a swarm with `--delayed-updates` takes the oracle's steps
(`swarm_storm.py`). Compared are the mean losses of the last tenth of the steps, for each learning
rate. A late gradient is at the parameters that the step between was predicted to give. Without the
prediction it is at the parameters before that step, as in ZeRO-Offload. All begin with the same
modules, and have the same rows: with `--documents` enough for all steps none comes twice. With
`--config` it is path 0 of another run, from its base model. The last line is one JSON object.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
from support.command_line import parser_of
from support.isolated_cache import isolated_cache
from support.scratch import scratch
from support.swarm_run import write_config

from dipaco.algorithm.delayed_updates import delayed_steps
from dipaco.inner.optimizer import learning_rates
from dipaco.inner.step import gradient_function, make_prediction, make_update, path_loss
from dipaco.runs.opening import open_run
from dipaco.runs.run import Run
from dipaco.topology import assemble
from dipaco.workers.row_plans import batches_for

SHORT = (
    *("--set", "phases=1", "--set", "inner.steps=4", "--set", "inner.warmup_steps=2"),
    *("--set", "baselines=()", "--set", "retention.modules=None"),
)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--d-model", type=int, default=32)
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-3, 3e-3], metavar="RATE")
    parser.add_argument("--documents", type=int, default=4000, help="of the toy corpus")
    parser.add_argument("--config", type=Path, help="model, text and base model of another run")
    parser.add_argument("--folder", help="where the run is put, and removed afterwards")
    options = parser.parse_args()
    with scratch(options.folder, "bench-delayed-") as folder:
        run = prepared(folder, options)
        with contextlib.closing(run.ledger):
            answer = [compared(run, rate, options) for rate in options.rates]
    print(json.dumps(answer))


def prepared(folder: Path, options: argparse.Namespace) -> Run:
    """A run with prepared and routed text, of which four steps are trained."""
    file, d_model = options.config, options.d_model
    if file is None:
        file = folder / "config.py"
        write_config(
            file,
            name="late gradients",
            phases=1,
            steps=4,
            batch=options.batch,
            d_model=d_model,
            documents=options.documents,
        )
    environment = {**os.environ, "DIPACO_CACHE": str(isolated_cache(folder / "cache"))}
    words = [sys.executable, "-m", "dipaco.cli.main", "train", str(file)]
    words += ["--run", str(folder / "run"), *SHORT]
    subprocess.run(words, check=True, env=environment, stdout=subprocess.DEVNULL)
    return open_run(folder / "run")


def compared(run: Run, rate: float, options: argparse.Namespace) -> dict[str, Any]:
    """Prints and returns the mean losses of the last tenth of the steps."""
    plain = loss_at_end(run, rate, options.steps, late=0)
    print(f"rate {rate:g}: plain {plain:.4f}", flush=True)
    found: dict[str, Any] = {"rate": rate, "plain": plain}
    for way, is_predicted in (("delayed", True), ("delayed, without prediction", False)):
        found[way] = loss_at_end(run, rate, options.steps, late=1, is_predicted=is_predicted)
        print(f"rate {rate:g}: {way} {found[way]:.4f} ({found[way] / plain - 1:+.1%})", flush=True)
    return found


def loss_at_end(
    run: Run, rate: float, num_steps: int, *, late: int, is_predicted: bool = True
) -> float:
    """The mean loss of the last tenth of so many steps, with this delay after the first."""
    inner = dataclasses.replace(
        run.config.inner,
        learning_rate=rate,
        steps=num_steps,
        warmup_steps=num_steps // 20,
    )
    arm = run.plan.arm("modular")
    modules = arm.topology.modules_of(0)
    parts = assemble({one: run.parameters("modular", one, 0) for one in modules}, modules)
    rates, batches = learning_rates(inner, num_steps, 0, num_steps), batches_for(run, arm, 0, 0)
    gradient = jax.jit(gradient_function(path_loss(run.config.model, inner), inner))

    def gradient_of(step: int, parts: Any) -> tuple[Any, Any]:
        return gradient(parts, run.programs.place_batch(batches.at(step)))

    steps = [(step, rates[step], late if step else 0) for step in range(num_steps)]
    predict = make_prediction(inner) if is_predicted else lambda state, rate: state.parts
    taken = delayed_steps(
        run.programs.place(parts, None, 0), steps, gradient_of, make_update(inner), predict
    )
    losses = [float(metrics.loss) for _, metrics in taken]
    return float(np.mean(losses[-max(1, num_steps // 10) :]))


if __name__ == "__main__":
    main()
