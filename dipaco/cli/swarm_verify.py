"""`dipaco swarm verify`: one machine takes the steps of a night again, and finds a lie in them.

Of every step that volunteers took, the ledger has random sums of the mean gradient, whose seed
nobody knew before the mean was fixed. This machine computes the same rows at its own parameters,
which hold no lie, and compares. The first step that differs is named, and whose rows it had. A run
without volunteers is compared bit for bit, module by module (`workers.replay`).
"""

import argparse
import itertools
import shlex
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from dipaco.control.members.swarms import GroupStep
    from dipaco.runs.run import Run

# Largest honest difference of a mean gradient, in times its size: on machines with float32 or TF32,
# and with the codec int8.
DISTANCE, INT8_DISTANCE = 0.005, 0.05


class Verified(NamedTuple):
    """A path's steps, replayed."""

    num_steps: int  # Steps that agree.
    largest: float  # difference among them, in times the gradient's size
    differing: "GroupStep | None" = None  # the first that does not agree
    difference: float = 0.0  # its own


def run(options: argparse.Namespace, opened: "Run") -> int:
    from dipaco.config import MODULAR
    from dipaco.workers.replay import differences

    config, ledger = opened.config, opened.ledger
    paths = [path for path in range(config.num_paths) if ledger.swarms.steps(MODULAR, path)]
    if paths:
        return max([_print_verified(opened, path, str(options.run)) for path in paths])
    reached = max(ledger.progress.phases_reached(MODULAR, len(config.topology.modules)), 0)
    wrong = differences(opened, reached)
    print("\n".join(f"other bits: {what}" for what in wrong) or "Every module has the same bits.")
    return 1 if wrong else 0


def _print_verified(opened: "Run", path: int, name: str) -> int:
    found = verified(opened, path)
    print(
        f"path {path}: {found.num_steps:,} steps have the gradient of their rows, within "
        f"{found.largest:.2g} of its size"
    )
    if (step := found.differing) is None:
        return 0
    rows = ", ".join(f"{who} {len(blocks)}" for who, blocks in sorted(step.blocks.items()))
    print(
        f"path {path}: the mean of step {step.step} is {found.difference:.2g} of its size away "
        f"from the gradient of its rows. Blocks by peer: {rows}\n"
        f"`dipaco swarm undo --run {shlex.quote(name)} --path {path} --to {step.step}` goes back "
        "to before it, or to an earlier step that it names."
    )
    return 1


def verified(opened: "Run", path: int) -> Verified:
    """Replays a path up to its last step by volunteers, or to the first that differs."""
    import numpy as np
    from jax.flatten_util import ravel_pytree

    from dipaco.config import MODULAR
    from dipaco.swarm.training.sum_sketch import sketch_of
    from dipaco.workers.replay import path_steps

    swarms, count, largest = opened.ledger.swarms, 0, 0.0
    steps = {one.step: one for one in swarms.steps(MODULAR, path)}
    tolerated = _tolerated(opened, swarms.options(MODULAR, path))
    replayed = path_steps(opened, path)
    for one in itertools.takewhile(lambda one: one.step <= max(steps), replayed):
        if (step := steps.get(one.step)) is None:
            continue  # a plain worker took it
        gradient = np.asarray(ravel_pytree(one.gradient)[0])
        ours = sketch_of(gradient, step.lineage.encode(), 0)
        size = float(np.linalg.norm(ours)) or 1.0
        difference = float(np.linalg.norm(ours - np.array(step.sketch))) / size
        if not difference <= tolerated:  # or a NaN
            return Verified(count, largest, step, difference)
        count, largest = count + 1, max(largest, difference)
    return Verified(count, largest)


def _tolerated(opened: "Run", options: dict[str, str]) -> float:
    from dipaco.swarm.planning.checks import TOLERANCES

    if (dtype := opened.config.model.compute_dtype) != "float32":
        return TOLERANCES[dtype].distance
    return INT8_DISTANCE if options.get("--codec") == "int8" else DISTANCE
