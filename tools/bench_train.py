"""How fast a training step is beside PyTorch's, and what a phase costs beside its bare steps.

    python tools/bench_train.py --dtypes float32
    python tools/bench_train.py --dtypes bfloat16
    python tools/bench_train.py --dtypes --corpus runs/quickstart/corpus

The step is that of a run (`Programs.step`) at d_model 256, 4 layers, 4 heads, d_ff 1024, sequence
256, batch 16, vocabulary 8192: 8.39 M parameters. The rival is `torch_llama.py`, eager and under
`torch.compile`, with as many threads as there are CPUs, fused AdamW and autocast. Each contender
is a process that waits while it is not its turn; all begin with the same parameters and tokens,
and their first losses must agree. A round gives every contender a step in turn; a ratio is theirs
to ours, of one round. `runs/allocator.py` is given to PyTorch as well, since it gains as much by it
(eager float32 1.5 to 1.1 s a step; `--stock` leaves it out), and it is at its best then: one thread
takes 2.1 s, AdamW with `foreach` 1.24.

With `--corpus`, a prepared one, also the overhead: a phase of 20 steps of the quickstart's model
as the trainer runs it (rows read, packed and placed, losses fetched, a bar drawn) against the bare
step on batches that lie ready. Steps of 50 ms: larger ones hide more.

The last line is JSON; null is what was not asked for. Above 1, we are faster.
"""

import argparse
import dataclasses
import io
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
from support.paired_ratio import median_and_interval

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
    """The quickstart with the model of this comparison, all of it on one path."""
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
        self.seconds: list[float] = []

    def take_a_step(self) -> None:
        assert self._process.stdin
        print(file=self._process.stdin, flush=True)
        self.seconds.append(float(self._read()))

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


def compare(dtype: str, rounds: int, file: Path, stock: bool) -> dict[str, Contender]:
    """Every contender, after as many steps as there are rounds, in turn."""
    contenders = {}
    for kind in ("ours", *RIVALS):
        contenders[kind] = Contender(kind, dtype, file, keeps_memory=kind == "ours" or not stock)
        ours, losses = contenders["ours"].first_losses, contenders[kind].first_losses
        if not np.allclose(losses, ours, rtol=TOLERANCE[dtype], atol=0):
            raise SystemExit(f"{kind} {dtype} has other losses: {losses}, ours {ours}")
    for _ in range(rounds):
        for contender in contenders.values():
            contender.take_a_step()
    for contender in contenders.values():
        contender.end()
    return contenders


def overhead(corpus_folder: Path, pairs: int) -> list[float]:
    """A phase's time over that of its bare steps, for each pair."""
    import jax
    import quickstart

    from dipaco.data.corpus import Corpus
    from dipaco.data.pipeline import Batches
    from dipaco.data.shards import build_shard
    from dipaco.inner.phase import run_phase
    from dipaco.observe.progress import Progress
    from dipaco.runs.allocator import keep_freed_memory
    from dipaco.runs.programs import Programs

    keep_freed_memory()
    corpus, config = Corpus.open(corpus_folder), quickstart.run()
    inner, programs = config.inner, Programs(config)
    plan = build_shard(corpus, 0, corpus.documents("train"), config.data.length, 0).plan
    batches = Batches(corpus, plan, inner.batch_size, seed=0)
    rates = np.full(inner.steps, RATE)
    tokens = inner.batch_size * config.data.length
    state = programs.place(programs.initial_parts(), None, 0)
    bar = Progress("phase", 1000 * inner.steps, stream=_Terminal())

    def phase(number: int) -> float:
        nonlocal state
        start = number * inner.steps
        began = time.perf_counter()
        result = run_phase(
            state,
            map(programs.place_batch, batches.iterate(start, inner.steps)),
            rates,
            programs.step,
            on_step=lambda _, loss: bar.advance(1, tokens=tokens, loss=loss),
        )
        state = jax.block_until_ready(result.state)
        return time.perf_counter() - began

    def bare_steps(number: int) -> float:
        nonlocal state
        steps = range(number * inner.steps, (number + 1) * inner.steps)
        ready = jax.block_until_ready([programs.place_batch(batches.at(step)) for step in steps])
        began = time.perf_counter()
        for batch, rate in zip(ready, rates, strict=True):
            state, _ = programs.step(state, batch, rate)
        jax.block_until_ready(state)
        return time.perf_counter() - began

    phase(0)
    bare_steps(0)
    with bar:
        return [phase(number) / bare_steps(number) for number in range(1, pairs + 1)]


class _Terminal(io.StringIO):
    """Nobody reads it, but the bar is drawn."""

    def isatty(self) -> bool:
        return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=20, help="rounds, or pairs of phases (20)")
    parser.add_argument("--dtypes", nargs="*", default=list(TOLERANCE), choices=list(TOLERANCE))
    parser.add_argument("--corpus", type=Path, help="a prepared one: measures the overhead too")
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
            print(f"{'':20} {'seconds a step':>14} {'ours':>6}   95 %           pairs")
        for dtype in arguments.dtypes:
            contenders = compare(dtype, arguments.pairs, file, arguments.stock)
            ours = np.array(contenders.pop("ours").seconds)
            print(f"{'ours ' + dtype:20} {np.median(ours):14.3f}")
            for rival, contender in contenders.items():
                ratios = np.array(contender.seconds) / ours
                middle, low, high = median_and_interval(ratios.tolist())
                short = {"float32": "f32", "bfloat16": "bf16"}[dtype]
                result[f"vs_{rival}_{short}"] = round(middle, 3)
                print(
                    f"{f'PyTorch {rival}':20} {np.median(contender.seconds):14.3f} {middle:6.2f}"
                    f"   [{low:.2f}, {high:.2f}]   {len(ratios)}"
                )
    result["overhead"] = None
    if arguments.corpus:
        ratios = overhead(arguments.corpus, arguments.pairs)
        middle, low, high = median_and_interval(ratios)
        result["overhead"] = round(middle, 3)
        print(f"phase / bare steps {middle:.3f}   [{low:.3f}, {high:.3f}]   {len(ratios)} pairs")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
