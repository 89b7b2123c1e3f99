"""What local steps cost in loss, and what they save in bytes (`dipaco swarm start --local-steps`).

Takes steps of one path of a finished run from its base model: as one machine, and as members of a
group that average their states after every H steps. All see the same rows at the same rates. The
loss is that of 16 batches that none has trained on.

    python tools/bench_local_steps.py --run runs/quickstart --steps 100 --rate 0.006

Bytes are those that a member sends for a step, as float32. The last line is one JSON object.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from support.command_line import parser_of

from dipaco.config import MODULAR
from dipaco.inner.local_steps import floats_of, make_local_steps, moved
from dipaco.inner.optimizer import learning_rates, make_optimizer
from dipaco.inner.state import PathState, fresh
from dipaco.inner.step import gradient_function, make_update, path_loss
from dipaco.runs.opening import reading
from dipaco.workers.row_plans import batches_for

HELD = 16  # batches


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--run", type=Path, required=True, help="a finished run")
    parser.add_argument("--path", type=int, default=0)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rate", type=float, default=0.006)
    parser.add_argument("--members", type=int, nargs="+", default=[4])
    parser.add_argument("--local-steps", type=int, nargs="+", default=[2, 5, 25])
    options = parser.parse_args()
    with reading(options.run) as run:
        config, start = run.config, run.base_parts()
        plan = batches_for(run, run.plan.arm(MODULAR), options.path, 0)
        batches = [plan.at(step) for step in range(options.steps + HELD)]
    inner = dataclasses.replace(
        config.inner, learning_rate=options.rate, warmup_steps=options.steps // 20
    )
    rates = learning_rates(inner, options.steps, 0, options.steps)
    loss = path_loss(config.model, inner)
    measured = jax.jit(loss)

    def held_loss(state: PathState) -> float:
        found = [measured(state.parts, batch) for batch in batches[options.steps :]]
        return float(sum(one for one, _ in found) / sum(targets for _, targets in found))

    state = first = jax.device_put(fresh(start, make_optimizer(inner)))
    gradient, update = jax.jit(gradient_function(loss, inner)), make_update(inner)
    for batch, rate in zip(batches, rates, strict=False):
        state = update(state, gradient(state.parts, batch)[0], rate)
    values = sum(leaf.size for leaf in jax.tree.leaves(first.parts))
    rows = [{"members": 1, "local_steps": 1, "loss": held_loss(state), "bytes": 4 * values}]
    print(f"one machine: loss {rows[0]['loss']:.3f}")
    of_member = make_local_steps(loss, inner)
    for members in options.members:
        for count in options.local_steps:
            state, size = first, config.inner.batch_size // members
            for step in range(0, options.steps, count):
                now = jnp.asarray(rates[step : step + count])
                found = [
                    of_member(state, _stacked(batches[step : step + len(now)], at, size), now)
                    for at in range(0, size * members, size)
                ]
                moves, _, targets = jax.tree.map(lambda *leaves: sum(leaves), *found)
                state = moved(state, [leaf / targets for leaf in moves], len(now))
            sent = 4 * sum(leaf.size for leaf in floats_of(first)) / count
            rows.append(
                {"members": members, "local_steps": count, "loss": held_loss(state), "bytes": sent}
            )
            more = rows[-1]["loss"] / rows[0]["loss"] - 1
            print(
                f"{members} members, {count} local steps: loss {rows[-1]['loss']:.3f} "
                f"({more:+.1%}), {sent / 1e6:.2f} MB a step instead of {4e-6 * values:.2f}"
            )
    print(json.dumps({"rate": options.rate, "steps": options.steps, "rows": rows}))


def _stacked(batches: list[Any], first: int, count: int) -> dict[str, jax.Array]:
    return {
        name: jnp.stack([batch[name][first : first + count] for batch in batches])
        for name in batches[0]
    }


if __name__ == "__main__":
    main()
