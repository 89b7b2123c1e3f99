"""Measures training on an accelerator against its peak arithmetic.

    python tools/bench_gpu.py                 # all of it; needs jax, flax, optax, annotated-types
    python tools/bench_gpu.py --only train --profile profile
    python tools/bench_gpu.py --anyway --tiny        # where there is none: that it runs, no more

There are two measurements, each with a table and a line of JSON. The last line has both ratios.

attention  cuDNN's kernel against attention written out, on packed rows: how far the loss and the
           gradients are apart (bfloat16), before anything is timed with it.
train      the paper's path of 150 M parameters (12 layers, d_model 896, vocabulary 32,000) in
           bfloat16, rows of 1024 tokens: model FLOP/s utilisation, that is `flops_per_token` times
           tokens per second over what the device's data sheet promises. Batches first, then, at the
           best of them, results of products in float32, rematerialisation, chunked logits and
           attention one at a time. `XLA_FLAGS=--xla_gpu_deterministic_ops=true` has equal bits.
           Memory is what the compiler says that the step needs. With --profile also where the best
           step's time goes.
Times are medians of windows of a few steps. A device that the table does not know is measured: a
large product. On CPU `--anyway --tiny` runs all of it. On an H100 each setting takes
20 s, most of them to compile.
"""

import argparse
import collections
import dataclasses
import functools
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.profiler import ProfileData
from support.command_line import parser_of, several

from dipaco.inner.config import InnerSettings
from dipaco.inner.optimizer import make_optimizer
from dipaco.inner.state import PathState, fresh
from dipaco.inner.step import make_step, path_loss
from dipaco.model.config import ModelConfig, flops_per_token, num_parameters
from dipaco.model.kernels import result_dtype
from dipaco.model.lm import training_loss
from dipaco.model.spec import initialise

PAPER = ModelConfig(
    vocab_size=32_000,
    d_model=896,
    num_layers=12,
    num_heads=16,
    d_ff=2304,
    max_length=1024,
    head_dim=64,
    compute_dtype="bfloat16",
)
TINY = ModelConfig(
    vocab_size=512,
    d_model=64,
    num_layers=2,
    num_heads=4,
    d_ff=128,
    max_length=64,
    compute_dtype="bfloat16",
)


class Peak(NamedTuple):
    """The peak performance of a device."""

    flops: float  # a second: dense bfloat16 products, summed in float32
    source: str


# The vendors' data sheets give these, without sparsity. Longer names come first, since the first
# that is part of `device_kind` counts.
PEAKS = {
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "GH200": 989e12,
    "H200": 989e12,
    "H100": 989e12,
    "B200": 2250e12,
    "A100-SXM4-40GB": 312e12,
    "A100-PCIE-40GB": 312e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L4": 121e12,
    "A10G": 70e12,
    "RTX 4090": 165e12,
    "TPU v6": 918e12,
    "TPU v5 lite": 197e12,
    "TPU v5": 459e12,
    "TPU v4": 275e12,
}


def peak_of(device: jax.Device, scale: int) -> Peak:
    """The peak from the table, or measured on squares of `scale`."""
    for name, flops in PEAKS.items():
        if name in device.device_kind:
            return Peak(flops, f"data sheet of {name}")
    square = jnp.ones((scale, scale), jnp.bfloat16)
    product = jax.jit(functools.partial(jnp.matmul, preferred_element_type=jnp.float32))
    return Peak(2 * scale**3 / seconds_of(lambda: product(square, square)), "measured")


def seconds_of(work: Callable[[], Any], windows: int = 9, calls: int = 3) -> float:
    """Median over windows of the time of one call, waiting at the end of each window only."""
    jax.block_until_ready(work())
    times = []
    for _ in range(windows):
        started = time.perf_counter()
        for _ in range(calls):
            out = work()
        jax.block_until_ready(out)
        times.append((time.perf_counter() - started) / calls)
    return float(np.median(times))


# --- training -----------------------------------------------------------------------------------


def step_of(model: ModelConfig, inner: InnerSettings):
    return make_step(path_loss(model, inner), inner)


def packed_batch(model: ModelConfig, rows: int, seed: int = 0) -> dict[str, jax.Array]:
    """Rows of several documents each, as training packs them."""
    rng = np.random.default_rng(seed)
    shape = rows, model.max_length
    starts = rng.random(shape) < 4 / model.max_length
    starts[:, 0] = True
    places = np.arange(model.max_length)[None]
    begun = np.maximum.accumulate(np.where(starts, places, 0), axis=1)
    arrays = {
        "tokens": rng.integers(0, model.vocab_size, shape),
        "segments": np.cumsum(starts, axis=1),
        "positions": places - begun,
    }
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.int32), arrays)


def fresh_state(model: ModelConfig, inner: InnerSettings, seed: int = 0) -> PathState:
    return fresh(initialise(model, jax.random.key(seed)), make_optimizer(inner))


def needed_bytes(program: Any) -> int:
    """Bytes of a compiled program: arguments, results that alias none of them, temporaries."""
    memory = program.memory_analysis()
    out = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return memory.argument_size_in_bytes + out + memory.temp_size_in_bytes


class Timed(NamedTuple):
    """A training step in one setting."""

    seconds: float
    num_bytes: int


def timed_step(model: ModelConfig, inner: InnerSettings, profile: str | None = None) -> Timed:
    batch, rate = packed_batch(model, inner.batch_size), np.float32(1e-4)
    state = fresh_state(model, inner)
    program = step_of(model, inner).lower(state, batch, rate).compile()

    def work():
        nonlocal state
        state, metrics = program(state, batch, rate)
        return metrics

    seconds = seconds_of(work)
    if profile is not None:
        with jax.profiler.trace(profile):
            jax.block_until_ready([work() for _ in range(3)])
    return Timed(seconds, needed_bytes(program))


def bench_train(arguments: argparse.Namespace, peak: Peak) -> dict[str, Any]:
    model = arguments.model
    flops = flops_per_token(model, model.max_length)
    rows: list[dict[str, Any]] = []
    print(
        f"\ntrain: {num_parameters(model) / 1e6:.0f} M parameters, rows of {model.max_length}\n"
        f"{'rows':>6} {'results':>9} {'remat':>6} {'chunks':>7} {'attention':>10} {'tokens/s':>10} "
        f"{'GB':>7} {'MFU':>6}"
    )

    def measure(
        batch: int, rematerialise: bool, chunks: int, kernel: str, results: str = "auto"
    ) -> float:
        inner = InnerSettings(batch_size=batch, rematerialise=rematerialise, loss_chunks=chunks)
        given = dataclasses.replace(model, attention_kernel=kernel, result_dtype=results)
        setting = {
            "rows": batch,
            "results": result_dtype(given),
            "remat": rematerialise,
            "chunks": chunks,
            "attention": kernel,
        }
        shown = f"{batch:6} {setting['results']:>9} {rematerialise!s:>6} {chunks:7} {kernel:>10}"
        try:
            timed = timed_step(given, inner)
        except Exception as error:
            # Too much memory, or a kernel that this device has not: a row of the table as well.
            print(f"{shown} {str(error).strip().splitlines()[0][:60]}")
            return 0.0
        tokens = batch * model.max_length / timed.seconds
        mfu = tokens * flops / peak.flops
        print(f"{shown} {tokens:10.0f} {timed.num_bytes / 1e9:7.2f} {mfu:6.1%}", flush=True)
        rows.append(
            {
                **setting,
                "tokens_per_second": round(tokens),
                "gigabytes": round(timed.num_bytes / 1e9, 2),
                "mfu": round(mfu, 4),
            }
        )
        return mfu

    kernel = "cudnn" if arguments.has_cudnn else "plain"
    by_batch = {batch: measure(batch, False, 8, kernel) for batch in arguments.batches}
    best = max(by_batch, key=lambda batch: by_batch[batch])
    measure(best, False, 8, kernel, "float32")
    measure(best, True, 8, kernel)
    measure(best, False, 1, kernel)
    measure(2 * max(arguments.batches), True, 8, kernel)
    if arguments.has_cudnn:
        measure(best, True, 8, "plain")
        measure(best, False, 8, "plain")
    assert rows, "no setting ran"
    top = max(rows, key=lambda row: row["mfu"])
    if arguments.profile is not None:
        timed_step(
            dataclasses.replace(
                model, attention_kernel=top["attention"], result_dtype=top["results"]
            ),
            InnerSettings(
                batch_size=top["rows"], rematerialise=top["remat"], loss_chunks=top["chunks"]
            ),
            arguments.profile,
        )
        print_shares(Path(arguments.profile))
    return {"mfu": top["mfu"], "best": top, "rows": rows}


def kernel_seconds(folder: Path) -> dict[str, float]:
    """Seconds of each kernel on the first GPU, by its name, longest first. Empty without a GPU."""
    totals: collections.Counter[str] = collections.Counter()
    for file in sorted(folder.rglob("*.xplane.pb")):
        for plane in ProfileData.from_file(str(file)).planes:
            if plane.name != "/device:GPU:0":
                continue
            for line in plane.lines:
                if line.name.startswith("Stream"):
                    for event in line.events:
                        totals[event.name] += event.duration_ns / 1e9
    return dict(totals.most_common())


def print_shares(profile: Path) -> None:
    """Prints the share of each kind of kernel in a traced step."""
    seconds = kernel_seconds(profile)
    shares: dict[str, float] = collections.defaultdict(float)
    for name, taken in seconds.items():
        shares[what_it_does(name)] += taken
    for kind, taken in sorted(shares.items(), key=lambda item: -item[1]):
        print(f"  {kind:<30} {taken / sum(seconds.values()):6.1%}")


def what_it_does(kernel: str) -> str:
    """The kind of a kernel, from the names that NVIDIA's libraries and XLA give."""
    if re.search(r"nvjet|cutlass|gemm|cublas", kernel):
        return "products"
    if "cudnn" in kernel:
        return "attention"
    return "sums and elementwise, by XLA" if "fusion" in kernel else "the rest"


# --- attention ----------------------------------------------------------------------------------


def bench_attention(arguments: argparse.Namespace, peak: Peak) -> dict[str, Any]:
    """The loss of packed rows and its gradients, by each kernel and in float32."""
    if not arguments.has_cudnn:
        print("\nattention: no cuDNN here, nothing to compare")
        return {"attention_error": None}
    model = dataclasses.replace(arguments.model, num_layers=2)
    parts, batch = initialise(model, jax.random.key(0)), packed_batch(model, 4)

    @functools.partial(jax.jit, static_argnums=0)
    def gradients(model, parts):
        names = ("tokens", "segments", "positions")
        loss = lambda parts: training_loss(model, parts, *(batch[n] for n in names))  # noqa: E731
        (total, targets), gradient = jax.value_and_grad(loss, has_aux=True)(parts)
        return total / targets, gradient

    def of(kernel, dtype):
        given = dataclasses.replace(model, attention_kernel=kernel, compute_dtype=dtype)
        return jax.device_get(gradients(given, parts))

    exact = of("plain", "float32")

    def error(found):
        squares = [
            (np.sum((a - b) ** 2), np.sum(b**2))
            for a, b in zip(jax.tree.leaves(found[1]), jax.tree.leaves(exact[1]), strict=True)
        ]
        return float(np.sqrt(sum(a for a, _ in squares) / sum(b for _, b in squares)))

    errors = {kernel: error(of(kernel, "bfloat16")) for kernel in ("plain", "cudnn")}
    ratio = errors["cudnn"] / errors["plain"]
    print(
        "\nattention: gradients of packed rows in bfloat16, relative distance from float32's\n"
        f"plain {errors['plain']:.2e}   cudnn {errors['cudnn']:.2e}   ratio {ratio:.2f}"
    )
    # Twice the rounding of the plain form is rounding. An ignored mask is hundreds of times that.
    assert ratio < 2, "cuDNN's attention is not that which is written out: do not use it"
    return {"attention_error": round(ratio, 3)}


BENCHES = {
    "attention": bench_attention,
    "train": bench_train,
}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--only", default=",".join(BENCHES), help="of them, by commas (all)")
    parser.add_argument("--batches", type=several, default=(16, 32, 64, 128), help="rows to train")
    parser.add_argument("--profile", metavar="FOLDER", help="trace of the best training step")
    parser.add_argument("--anyway", action="store_true", help="run where there is no accelerator")
    parser.add_argument("--tiny", action="store_true", help="small enough for a CPU")
    arguments = parser.parse_args()

    device = jax.devices()[0]
    if device.platform == "cpu" and not arguments.anyway:
        print("no GPU here (`--anyway --tiny` tries it on the CPU)")
        return
    arguments.model = TINY if arguments.tiny else PAPER
    if arguments.tiny:
        arguments.batches = (2, 4)
    arguments.has_cudnn = "NVIDIA" in device.device_kind
    peak = peak_of(device, 512 if arguments.tiny else 8192)
    print(
        f"{device.device_kind}: {peak.flops / 1e12:.1f} TFLOP/s ({peak.source}); "
        f"jax {jax.__version__}"
    )
    if arguments.profile is not None:
        Path(arguments.profile).mkdir(parents=True, exist_ok=True)

    summary: dict[str, Any] = {"device": device.device_kind, "peak": peak.source}
    for name in arguments.only.split(","):
        result = BENCHES[name](arguments, peak)
        print(json.dumps({"bench": name, **result}), flush=True)
        summary |= {key: value for key, value in result.items() if key not in ("rows", "best")}
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
