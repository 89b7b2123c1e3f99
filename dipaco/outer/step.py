"""One outer step of one module: (before, mean outer gradient) -> after.

A step works in place, on one block of values after another. It holds three module sizes (before,
mean, momentum) and a block, even if one leaf is the whole module (the head of the paper's largest
model). `nesterov` treats every value by itself, and any such optimiser could stand in its place. An
optimiser that does not is a user's rule (`own_step.py`). optax computes on NumPy arrays here:
compiled by XLA:CPU it took three times as long (0.3 GB/s of a module against 0.9, mostly calls and
copies), and its bits depended on the machine.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dipaco import trees
from dipaco.outer.config import OuterSettings
from dipaco.outer.gradient import sum_of_squares
from dipaco.outer.own_step import OuterRule, fresh_by, step_by

Module = dict[str, Any]  # part name -> tree of arrays
BLOCK_VALUES = 1 << 15


class OuterResult(NamedTuple):
    """A module after its outer step."""

    after: Module
    momentum: dict[str, Any]  # part name -> optax state
    gradient_norm: float  # norm of the mean outer gradient, before the rescale


def nesterov(settings: OuterSettings) -> optax.GradientTransformation:
    """`u <- mu u + g` and `theta <- theta - lr (g + mu u)`. Without momentum, plain descent.

    Source: DiLoCo (arXiv 2311.08105) section 2, DiPaCo Algorithm 1 line 15.
    """
    return optax.sgd(settings.learning_rate, momentum=settings.momentum or None, nesterov=True)


def first_outer_state(
    settings: OuterSettings, module: Module, rule: OuterRule | None = None
) -> dict[str, Any]:
    """The outer state before the first step: per part an optax state of float32 zeros, or the first
    state of a user's rule.
    """
    if rule is not None:
        return fresh_by(rule, settings, module)

    def zeros(part):
        like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.float32), part)
        state = jax.eval_shape(nesterov(settings).init, like)
        return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), state)

    return {name: zeros(part) for name, part in module.items()}


def outer_step(
    settings: OuterSettings,
    before: Module,
    mean: Module,
    momentum: dict[str, Any],
    fan_in: int,
    rule: OuterRule | None = None,
) -> OuterResult:
    """Steps one module.

    Args:
      before: the module at the start of the phase. Emptied part by part, as the next two are.
      mean: float32, from `WeightedMean`. Its arrays are overwritten.
      momentum: outer state of the module, from `first_outer_state` or the step before. Overwritten.
      fan_in: paths through the module. The mean is multiplied by its square root if
        `settings.rescale_by_fan_in`.
      rule: steps in the place of Nesterov, with the rescaled mean. `before` is not emptied then.

    Raises:
      StructureMismatch: the rule returned other parts than it was given.

    Source: DiPaCo Algorithm 1 line 15, and section 2.7 for the rescale.
    """
    norm = math.sqrt(sum_of_squares(dict(trees.flatten(mean))))
    scale = np.float32(math.sqrt(fan_in) if settings.rescale_by_fan_in else 1.0)
    if rule is not None:
        rescaled = jax.tree.map(lambda leaf: np.multiply(leaf, scale, out=leaf), mean)
        return OuterResult(*step_by(rule, settings, before, rescaled, momentum), norm)
    after, new_momentum = {}, {}
    for name in sorted(before):
        after[name], new_momentum[name] = _step_part(
            settings, before.pop(name), mean.pop(name), momentum.pop(name), scale
        )
    return OuterResult(after, new_momentum, norm)


def _step_part(settings, before, mean, momentum, scale):
    olds, structure = jax.tree.flatten(before)
    means, states = jax.tree.leaves(mean), jax.tree.leaves(momentum)
    per_leaf = len(states) // len(olds)  # without momentum, there is no state
    after = [
        _step_leaf(settings, old, mean, states[i * per_leaf : (i + 1) * per_leaf], scale)
        for i, (old, mean) in enumerate(zip(olds, means, strict=True))
    ]
    return jax.tree.unflatten(structure, after), momentum


def _step_leaf(settings, old, mean, states, scale):
    """Overwrites the mean with the new values, if of one type, and the old state with the new."""
    new = mean if old.dtype == mean.dtype else np.empty(old.shape, old.dtype)
    optimizer = nesterov(settings)
    structure = jax.tree.structure(jax.eval_shape(optimizer.init, mean))
    flat_old, flat_mean, flat_new, *flat_states = (
        array.reshape(-1) for array in (old, mean, new, *states)
    )
    for start in range(0, new.size, BLOCK_VALUES):
        block = slice(start, start + BLOCK_VALUES)
        state = jax.tree.unflatten(structure, [flat[block] for flat in flat_states])
        updates, state = optimizer.update(flat_mean[block] * scale, state)
        for flat, stepped in zip(flat_states, jax.tree.leaves(state), strict=True):
            flat[block] = stepped
        flat_new[block] = flat_old[block].astype(np.float32, copy=False) + updates
    return new
