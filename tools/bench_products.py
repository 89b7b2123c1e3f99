"""The two ways in which serving takes its products, with tokens as rows and as columns, on this
machine: seconds of a decoding step and of reading a prompt, the model alone.

    python tools/bench_products.py
    python tools/bench_products.py --sizes 0.8,8 --rounds 30

In turn, round by round, for one path; a ratio is rows / columns, its median over the rounds with a
95 % interval. `dipaco.model.kernels.tokens_are_rows` says which way this machine's server takes.
"""

import argparse
import dataclasses
import functools
import json
import time
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from support.paired_ratio import median_and_interval

from dipaco.model import inference
from dipaco.model.cache import empty_cache
from dipaco.model.config import ModelConfig
from dipaco.model.kernels import tokens_are_rows
from dipaco.model.spec import describe
from dipaco.overrides import load_config

QUICKSTART = Path(__file__).parents[1] / "configs" / "quickstart.py"
SIZES = {  # millions of parameters -> what differs from the quickstart's model
    "0.8": {},
    "8": {"d_model": 256, "d_ff": 688, "num_heads": 8, "vocab_size": 8192},
    "60": {"d_model": 512, "d_ff": 1408, "num_heads": 8, "num_layers": 8, "vocab_size": 32000},
}
STEPS = 8  # in one program
SLOTS = 64  # of a row's cache


class Shape(NamedTuple):
    """What goes through the model at once."""

    rows: int
    tokens: int  # of each; 1: a decoding step


SHAPES = [*(Shape(rows, 1) for rows in (1, 2, 8, 32, 64)), Shape(1, 64), Shape(1, 512)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="0.8,8", metavar="N,N", help=f"of {', '.join(SIZES)}")
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    print(f"a server here has tokens as {'rows' if tokens_are_rows() else 'columns'}")
    print("million   rows   tokens   columns, ms   rows, ms   rows / columns [95 %]")
    base = load_config(QUICKSTART).model
    ratios: dict[str, float] = {}
    for size in options.sizes.split(","):
        config = dataclasses.replace(base, max_length=512, **SIZES[size])
        rng = np.random.default_rng(0)
        draw = lambda spec: rng.normal(0, 0.05, spec.shape).astype(np.float32)  # noqa: E731, B023
        parts = jax.tree.map(draw, describe(config))
        for shape in SHAPES:
            columns, rows = seconds(config, parts, shape, options.rounds)
            ratio, low, high = median_and_interval(
                [b / a for a, b in zip(columns, rows, strict=True)]
            )
            print(
                f"{size:>7}  {shape.rows:5}  {shape.tokens:7}  {1e3 * np.median(columns):12.3f}"
                f"  {1e3 * np.median(rows):9.3f}  {ratio:7.2f} [{low:.2f}, {high:.2f}]",
                flush=True,
            )
            ratios[f"{size}: {shape.rows} x {shape.tokens}"] = round(ratio, 3)
    print(json.dumps({"rows_to_columns": ratios}))


def seconds(
    config: ModelConfig, parts: dict, shape: Shape, rounds: int
) -> tuple[list[float], list[float]]:
    """Of each round, with tokens as columns and as rows."""
    slots = max(SLOTS, shape.tokens)
    blocks = empty_cache(config, shape.rows, slots)
    del blocks["length"]
    tokens_BT = jnp.ones((shape.rows, shape.tokens), jnp.int32)
    starts_B = jnp.full(shape.rows, 0 if shape.tokens > 1 else slots // 4, jnp.int32)
    steps = STEPS if shape.tokens == 1 else 1
    ways = [inference.prepare(config, parts, as_rows) for as_rows in (False, True)]
    taken: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 1):
        for prepared, own in zip(ways, taken, strict=True):
            started = time.perf_counter()
            jax.block_until_ready(_run(config, steps, prepared, tokens_BT, starts_B, blocks))
            if number:  # the first compiles
                own.append((time.perf_counter() - started) / steps)
    return taken


@functools.partial(jax.jit, static_argnums=(0, 1))
def _run(config, steps, prepared, tokens_BT, starts_B, blocks):
    rows = len(tokens_BT)

    def step(state):
        number, tokens_BT, blocks = state
        x_DN, blocks = inference.extend(config, prepared, tokens_BT, starts_B + number, blocks)
        logits_BV = inference.logits(config, prepared, x_DN[:, -rows:])
        next_B = jnp.argmax(logits_BV, axis=1).astype(jnp.int32)
        return number + 1, tokens_BT.at[:, -1].set(next_B), blocks

    return lax.while_loop(lambda state: state[0] < steps, step, (0, tokens_BT, blocks))


if __name__ == "__main__":
    main()
