"""Paths that step together: what is done with the gradients of a module's paths at every step.

The pieces of synchronous training (DiPaCo section 4.5), which `algorithm.train_synchronously` puts
together: weighted sums, the norm that clipping needs, and one AdamW step of one module. Each is
compiled once for every set of parts that a level owns.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from dipaco.inner.config import InnerSettings
from dipaco.inner.optimizer import adamw_of_clipped

Tree = Any


@jax.jit
def weighted(gradient: Tree, weight: Any) -> Tree:
    """weight * gradient."""
    return jax.tree.map(lambda leaf: leaf * weight, gradient)


def _add_weighted(total: Tree, gradient: Tree, weight: Any) -> Tree:
    return jax.tree.map(lambda sum_, leaf: sum_ + leaf * weight, total, gradient)


# total + weight * gradient; `total` is given up.
add_weighted = jax.jit(_add_weighted, donate_argnums=0)


@jax.jit
def squared_norm(gradient: Tree) -> jax.Array:
    """Sum of the squares of all values, float32."""
    return sum((jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(gradient)), jnp.zeros(()))


def make_module_update(settings: InnerSettings) -> Callable[..., tuple[Tree, Tree]]:
    """Compiles `update(parameters, state, gradient, scale, learning_rate) -> (parameters, state)`:
    a step of AdamW with the gradient times `scale`, which clips it. Parameters and state are given
    up (donated).
    """
    optimizer = adamw_of_clipped(settings)

    def update(parts, state, gradient, scale, learning_rate):
        gradient = jax.tree.map(lambda leaf: leaf * scale, gradient)
        direction, state = optimizer.update(gradient, state, parts)
        updates = jax.tree.map(lambda leaf: -learning_rate * leaf, direction)
        return optax.apply_updates(parts, updates), state

    return jax.jit(update, donate_argnums=(0, 1))
