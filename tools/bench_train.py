"""Measures the speed of a training step beside PyTorch's.

    python tools/bench_train.py --dtypes float32
    python tools/bench_train.py --dtypes bfloat16

The step is a run's (`Programs.step`) at d_model 256, 4 layers, 4 heads, d_ff 1024, sequence 256,
batch 16, vocabulary 8192: 8.39 M parameters. The rival is `torch_llama.py`, eager and under
`torch.compile`, with as many threads as there are CPUs, fused AdamW and autocast. Each contender is
a process that waits while it is not its turn. All begin with the same parameters and tokens, and
their first losses must agree. A round gives every contender a step in turn, and a ratio is theirs
to ours in one round. `runs/allocator.py` is given to PyTorch as well, since it gains as much by it
(eager float32 1.5 to 1.1 s a step, unless `--stock` leaves it out), and it is at its best then: one
thread takes 2.1 s, AdamW with `foreach` 1.24.

The last line is JSON, with null for everything that was left out. Above 1, we are faster.
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from support.command_line import parser_of
from support.rounds import in_turn, ratio_of

HOME = Path(__file__).parents[1]

SHAPE: dict[str, Any] = {
    "vocab_size": 8192,
    "d_model": 256,
    "num_layers": 4,
    "num_heads": 4,
    "d_ff": 1024,
    "max_length": 256,
}
ROWS = 16
RATE = np.float32(1e-4)
WARM_STEPS = 3
RIVALS = ("eager", "compiled")
# First losses may differ by so much of themselves: only rounding does.
TOLERANCE = {"float32": 1e-5, "bfloat16": 1e-3}


def config_of(dtype: Any) -> Any:
    """The quickstart with AdamW and the model of this comparison, all of it on one path."""
    from dipaco.model.config import ModelConfig, part_names
    from dipaco.overrides import load_config
    from dipaco.routing.config import RoutingConfig
    from dipaco.topology import Level, Topology

    config = load_config(HOME / "configs" / "quickstart.py")
    model = ModelConfig(**SHAPE, compute_dtype=dtype)
    return dataclasses.replace(
        config,
        model=model,
        topology=Topology(levels=(Level(name="all", parts=part_names(model)),)),
        data=dataclasses.replace(config.data, length=model.max_length),
        routing=RoutingConfig(),
        inner=dataclasses.replace(config.inner, optimizer="adamw"),
    )


def begin(file: Path) -> None:
    """Writes what every contender starts from: parameters and tokens."""
    from dipaco.runs.programs import Programs

    parts = Programs(config_of("float32")).initial_parts()
    shape = (ROWS, SHAPE["max_length"])
    tokens = np.random.default_rng(0).integers(0, SHAPE["vocab_size"], shape, np.int32)
    np.save(file, np.array({"parts": parts, "tokens": tokens}, dtype=object), allow_pickle=True)


def our_step(start: dict, dtype: str) -> Callable[[], float]:
    from dipaco.runs.programs import Programs

    programs = Programs(config_of(dtype))
    state = programs.place(start["parts"], None, 0)
    tokens = start["tokens"]
    positions = np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int32), tokens.shape)
    batch = {"tokens": tokens, "segments": np.ones_like(tokens), "positions": positions}
    batch = programs.place_batch(batch)

    def step() -> float:
        nonlocal state
        state, metrics = programs.step(state, batch, RATE)
        return float(metrics.loss)

    return step


def their_step(start: dict, dtype: str, kind: str) -> Callable[[], float]:
    import torch
    from rivals.torch_llama import Llama, Trainer

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    model = Llama(
        SHAPE["vocab_size"],
        SHAPE["d_model"],
        SHAPE["num_layers"],
        SHAPE["num_heads"],
        SHAPE["d_ff"],
        SHAPE["max_length"],
    )
    model.take(start["parts"])
    trainer = Trainer(model, compiled=kind == "compiled", bfloat16=dtype == "bfloat16")
    tokens = torch.from_numpy(start["tokens"]).long()
    return lambda: trainer.step(tokens, float(RATE))


def contend(kind: str, dtype: str, file: Path, keeps_memory: bool) -> None:
    """The process of one contender: says its first losses, then takes a step for every line."""
    if keeps_memory:
        from dipaco.runs.allocator import keep_freed_memory

        keep_freed_memory()
    start = np.load(file, allow_pickle=True).item()
    step = our_step(start, dtype) if kind == "ours" else their_step(start, dtype, kind)
    print(json.dumps([step() for _ in range(WARM_STEPS)]), flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        step()
        print(time.perf_counter() - began, flush=True)


class Contender:
    """A process that takes a step on request, and sleeps otherwise."""

    def __init__(self, kind: str, dtype: str, file: Path, keeps_memory: bool):
        command = [sys.executable, __file__, "--contend", kind, dtype, str(file)]
        self._process = subprocess.Popen(
            command + ([] if keeps_memory else ["--stock"]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(HOME)},
        )
        self.first_losses = json.loads(self._read())

    def step_seconds(self, number: int) -> float:
        """Takes a step."""
        assert self._process.stdin
        print(file=self._process.stdin, flush=True)
        return float(self._read())

    def end(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(timeout=60)

    def _read(self) -> str:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"a contender ended with code {self._process.wait()}")
        return line


def compare(dtype: str, rounds: int, file: Path, stock: bool) -> dict[str, list[float]]:
    """Seconds of every contender's steps, one in each round."""
    contenders = {}
    for kind in ("ours", *RIVALS):
        contenders[kind] = Contender(kind, dtype, file, keeps_memory=kind == "ours" or not stock)
        ours, losses = contenders["ours"].first_losses, contenders[kind].first_losses
        if not np.allclose(losses, ours, rtol=TOLERANCE[dtype], atol=0):
            raise SystemExit(f"{kind} {dtype} has other losses: {losses}, ours {ours}")
    seconds = in_turn({kind: one.step_seconds for kind, one in contenders.items()}, rounds)
    for contender in contenders.values():
        contender.end()
    return seconds


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--pairs", type=int, default=20, help="rounds (20)")
    parser.add_argument("--dtypes", nargs="*", default=list(TOLERANCE), choices=list(TOLERANCE))
    parser.add_argument("--stock", action="store_true", help="PyTorch's memory as it comes")
    parser.add_argument("--contend", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.contend:
        kind, dtype, file = arguments.contend
        contend(kind, dtype, Path(file), keeps_memory=not arguments.stock)
        return

    result: dict[str, float | None] = {
        f"vs_{rival}_{short}": None for rival in RIVALS for short in ("f32", "bf16")
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "start.npy"
        if arguments.dtypes:
            begin(file)
            print(f"{'':20} {'seconds a step':>14}   theirs / ours       rounds")
        for dtype in arguments.dtypes:
            seconds = compare(dtype, arguments.pairs, file, arguments.stock)
            ours = seconds.pop("ours")
            print(f"{'ours ' + dtype:20} {np.median(ours):14.3f}")
            for rival, theirs in seconds.items():
                ratio = ratio_of(theirs, ours)
                short = {"float32": "f32", "bfloat16": "bf16"}[dtype]
                result[f"vs_{rival}_{short}"] = round(ratio.median, 3)
                print(f"{f'PyTorch {rival}':20} {np.median(theirs):14.3f}   {ratio}   {len(ours)}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
