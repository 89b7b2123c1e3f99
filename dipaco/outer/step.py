"""One outer step of one module: before + mean outer gradient -> after.

Works part by part and gives up what it has used, so that a step holds three module sizes (before,
mean, momentum) and one part.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dipaco import trees
from dipaco.outer.config import OuterSettings
from dipaco.outer.optimizer import nesterov

Module = dict[str, Any]  # part name -> tree of arrays


class OuterResult(NamedTuple):
    """A module after its outer step."""

    after: Module
    momentum: dict[str, Any]  # part name -> optax state
    gradient_norm: float  # of the mean outer gradient, before the rescale


def fresh(settings: OuterSettings, module: Module) -> dict[str, Any]:
    """The outer state of a module that has not stepped yet: one optax state per part, zero,
    float32.
    """
    return {name: _init(settings, part) for name, part in module.items()}


def outer_step(
    settings: OuterSettings, before: Module, mean: Module, momentum: dict[str, Any], fan_in: int
) -> OuterResult:
    """Steps one module.

    Args:
      settings: rate, momentum, rescale.
      before: the module at the start of the phase. This and the next two are emptied, part by part.
      mean: float32, from `WeightedMean`.
      momentum: outer state of the module, from `fresh` or the step before.
      fan_in: paths through the module; the mean is multiplied by its square root where the settings
        say so.

    Source: DiPaCo Algorithm 1 lines 13-15; the rescale is section 2.7.
    """
    norm = math.sqrt(sum(float(np.vdot(leaf, leaf)) for _, leaf in trees.flatten(mean)))
    scale = np.float32(math.sqrt(fan_in) if settings.rescale_by_fan_in else 1.0)
    after, new_momentum = {}, {}
    for name in sorted(before):
        after[name], new_momentum[name] = jax.device_get(
            _step(settings, before.pop(name), mean.pop(name), momentum.pop(name), scale)
        )
    return OuterResult(after, new_momentum, norm)


@functools.partial(jax.jit, static_argnums=0)
def _init(settings, part):
    return nesterov(settings).init(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), part))


@functools.partial(jax.jit, static_argnums=0)
def _step(settings, before, mean, momentum, scale):
    updates, momentum = nesterov(settings).update(
        jax.tree.map(lambda leaf: leaf * scale, mean), momentum
    )
    after = jax.tree.map(
        lambda old, update: (old.astype(jnp.float32) + update).astype(old.dtype), before, updates
    )
    return after, momentum
