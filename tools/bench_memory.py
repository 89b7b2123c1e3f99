"""The most memory that a training step takes, by setting.

    python tools/bench_memory.py

A path of the paper's size: 12 layers, d_model 896, vocabulary 32,000, 179 M parameters, float32, of
which parameters and AdamW's state are 2.1 GB and gradients 0.7. A batch has `--rows` of 1,024
tokens. Each setting has its own process, which begins a path, takes steps, and says the most memory
that it ever had (resident set, Python and the compiler included). Every setting must show the
losses of the plain step.

The last line is JSON: gigabytes by setting.
"""

import argparse
import dataclasses
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from support.command_line import parser_of

HOME = Path(__file__).parents[1]
NO_SAVINGS = {"loss_chunks": 1, "rematerialise": False, "accumulation_steps": 1}
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "loss_chunks=8": {"loss_chunks": 8},
    "rematerialise": {"rematerialise": True},
    "accumulation_steps=4": {"accumulation_steps": 4},
    "all three": {"loss_chunks": 8, "rematerialise": True, "accumulation_steps": 4},
}
TOLERANCE = 1e-5  # Relative difference of losses. Sums are taken in another order.


def train(setting: dict[str, Any], rows: int, steps: int, layers: int) -> dict[str, Any]:
    """A fresh path's first steps, in this process."""
    from dipaco.runs.allocator import keep_freed_memory

    keep_freed_memory()
    from dipaco.model.config import part_names
    from dipaco.overrides import load_config
    from dipaco.runs.programs import Programs
    from dipaco.topology import Level, Topology

    config = load_config(HOME / "configs" / "paper_2x4.py")
    model = dataclasses.replace(config.model, num_layers=layers, compute_dtype="float32")
    config = dataclasses.replace(
        config,
        model=model,
        topology=Topology(levels=(Level(name="all", parts=part_names(model)),)),
        inner=dataclasses.replace(config.inner, batch_size=rows, **(NO_SAVINGS | setting)),
    )
    programs = Programs(config)
    state = programs.place(programs.initial_parts(), None, 0)
    rng, shape = np.random.default_rng(0), (rows, config.data.length)
    losses, seconds = [], 0.0
    for _ in range(steps):
        tokens = rng.integers(0, model.vocab_size, shape, np.int32)
        positions = np.broadcast_to(np.arange(shape[1], dtype=np.int32), shape)
        batch = {"tokens": tokens, "segments": np.ones_like(tokens), "positions": positions}
        began = time.perf_counter()
        state, metrics = programs.step(state, programs.place_batch(batch), np.float32(1e-4))
        losses.append(float(metrics.loss))
        seconds = time.perf_counter() - began
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB.
    return {"gigabytes": most / 1e9, "seconds": seconds, "losses": losses}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--rows", type=int, default=8, help="of a batch (8)")
    parser.add_argument("--steps", type=int, default=2, help="taken; the last is timed (2)")
    parser.add_argument("--layers", type=int, default=12, help="(12)")
    parser.add_argument("--settings", nargs="*", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--train", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    sizes = arguments.rows, arguments.steps, arguments.layers
    if arguments.train:
        print(json.dumps(train(SETTINGS[arguments.train], *sizes)))
        return

    print(f"{'':22} {'GB':>6} {'s a step':>9}")
    result: dict[str, float] = {}
    plain: list[float] | None = None
    for name in arguments.settings:
        command = [sys.executable, __file__, *sys.argv[1:], "--train", name]
        environment = os.environ | {"PYTHONPATH": str(HOME)}
        output = subprocess.run(command, check=True, capture_output=True, env=environment).stdout
        of_setting = json.loads(output.splitlines()[-1])
        plain = plain or of_setting["losses"]
        if not np.allclose(of_setting["losses"], plain, rtol=TOLERANCE, atol=0):
            raise SystemExit(f"{name} has other losses: {of_setting['losses']} and {plain}")
        result[name] = round(of_setting["gigabytes"], 2)
        print(f"{name:22} {result[name]:6.2f} {of_setting['seconds']:9.1f}", flush=True)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
