"""Synchronous training: the gradients of a module's paths are averaged at every inner step.

The loop that the runtime executes, DiPaCo section 4.5. It is compared with the oracle
`algorithm/synchronous.py`. Its pieces (weighted sums, the norm that clipping needs, one inner step
of one module) are compiled once for every set of parts that a level owns. Each gradient is added
once it is computed, so that one path's gradient and one mean per module are in memory.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from dipaco.inner.config import InnerSettings
from dipaco.inner.optimizer import make_optimizer
from dipaco.topology import ModuleId, Topology, assemble, dissect

Tree = Any
Modules = dict[ModuleId, Any]


def synchronous_steps(
    topology: Topology,
    modules: Modules,
    states: Modules,
    gradient_of: Callable[[int, int, Tree], Tree],
    update: Callable[[int, Tree, Tree, Tree, Any], tuple[Tree, Tree]],
    weights: Mapping[ModuleId, Mapping[int, Any]],
    *,
    steps: Iterable[int],
    clip_norm: float,
) -> Iterator[tuple[Modules, Modules]]:
    """Yields modules and optimiser states after each step, which all paths take together.

    A path's gradient, made of its modules' means, is clipped as one model's is. A module whose
    paths are clipped differently takes their weighted mean clip.

    Args:
      modules: parameters of every module. Donated.
      states: one optimiser state per module, not per path. Donated.
      gradient_of: (path, step, parts) -> gradient of the path's mean loss.
      update: (step, parameters, state, gradient, clip) -> (parameters, state), from
        `make_module_update`.
      weights: module -> path -> float32 alpha_i, summing to one over the module's paths.
      steps: numbers of the inner steps to take.

    Source: DiPaCo section 4.5.
    """
    for step in steps:
        mean: Modules = {}
        for path in range(topology.num_paths):  # parallel on real machines, and all wait
            parts = assemble(modules, topology.modules_of(path))
            for module, gradient in dissect(gradient_of(path, step, parts), topology, path).items():
                weight = weights[module][path]
                mean[module] = (
                    add_weighted(mean[module], gradient, weight)
                    if module in mean
                    else weighted(gradient, weight)
                )
        squares = {module: squared_norm(gradient) for module, gradient in mean.items()}
        clip = []
        for path in range(topology.num_paths):
            norm = jnp.sqrt(sum(squares[module] for module in topology.modules_of(path)))
            clip.append(jnp.minimum(1.0, clip_norm / norm))
        stepped: Modules = {}
        for module in topology.modules:
            scale = sum(weight * clip[path] for path, weight in weights[module].items())
            stepped[module], states[module] = update(
                step, modules[module], states[module], mean.pop(module), scale
            )
        modules = stepped
        yield modules, states


@jax.jit
def weighted(gradient: Tree, weight: Any) -> Tree:
    """weight * gradient."""
    return jax.tree.map(lambda leaf: leaf * weight, gradient)


def _add_weighted(total: Tree, gradient: Tree, weight: Any) -> Tree:
    return jax.tree.map(lambda sum_, leaf: sum_ + leaf * weight, total, gradient)


# total + weight * gradient. `total` is donated.
add_weighted = jax.jit(_add_weighted, donate_argnums=0)


@jax.jit
def squared_norm(gradient: Tree) -> jax.Array:
    """Sum of the squares of all values, float32."""
    return sum((jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(gradient)), jnp.zeros(()))


def make_module_update(settings: InnerSettings) -> Callable[..., tuple[Tree, Tree]]:
    """Compiles `update(parameters, state, gradient, scale, learning_rate) -> (parameters, state)`:
    an inner step with the gradient times `scale`, which clips it. Parameters and state are given
    up (donated).
    """
    optimizer = make_optimizer(settings, is_clipped=True)

    def update(parts, state, gradient, scale, learning_rate):
        gradient = jax.tree.map(lambda leaf: leaf * scale, gradient)
        direction, state = optimizer.update(gradient, state, parts)
        updates = jax.tree.map(lambda leaf: -learning_rate * leaf, direction)
        return optax.apply_updates(parts, updates), state

    return jax.jit(update, donate_argnums=(0, 1))
