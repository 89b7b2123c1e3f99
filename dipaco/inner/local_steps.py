"""Local steps: a member of a path's worker group takes several inner steps by itself. Then the
group takes the mean of the members' states (local SGD, arXiv 1805.09767).

It is Algorithm 1 of DiPaCo with one path per member, whose module is parameters and optimiser state
together, and the plain mean as outer step. The optimiser state is averaged as well, so that a
member that leaves takes nothing along. Moments that are zero again after each averaging cost more
than the steps bring (`tools/LOG.md`).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from dipaco.inner.config import InnerSettings
from dipaco.inner.optimizer import make_optimizer
from dipaco.inner.state import PathState
from dipaco.inner.step import Batch, LossFn, descend, summed_gradient

Move = list[Any]  # old minus new, for each leaf of a state that is a float


def make_local_steps(
    loss_fn: LossFn, settings: InnerSettings
) -> Callable[[PathState, Batch, jax.Array], tuple[Move, jax.Array, jax.Array]]:
    """Compiles `local_steps(state, batches, rates) -> (move, summed loss, targets)`.

    `batches` have an axis of steps before the rows, `rates` [steps] their learning rates. A batch
    without targets is no step. The move is times the targets of all steps: sums of moves over sums
    of targets are means, as with gradients.
    """
    optimizer, gradient_of = make_optimizer(settings), summed_gradient(loss_fn)

    def local_steps(state: PathState, batches: Batch, rates: jax.Array):
        def step(state: PathState, one: tuple[Batch, jax.Array]):
            batch, rate = one
            gradient, loss_sum, targets = gradient_of(state.parts, batch)
            scale = 1.0 / jnp.maximum(targets, 1.0)
            gradient = jax.tree.map(lambda leaf: leaf * scale, gradient)
            after = descend(optimizer, state, gradient, rate)
            kept = jax.tree.map(lambda new, old: jnp.where(targets > 0, new, old), after, state)
            return kept, (loss_sum, targets)

        after, (losses, targets) = jax.lax.scan(step, state, (batches, rates))
        total, pairs = targets.sum(), zip(floats_of(state), floats_of(after), strict=True)
        return [total * (old - new) for old, new in pairs], losses.sum(), total

    return jax.jit(local_steps)


def floats_of(state: PathState) -> list[Any]:
    """The leaves of a state that members average. The others count steps."""
    return [leaf for leaf in jax.tree.leaves(state) if _is_float(leaf)]


def moved(state: PathState, mean: Move, steps: int) -> PathState:
    """The state that all members have after so many local steps, from the mean of their moves."""
    moves = iter(mean)
    return jax.tree.map(lambda leaf: leaf - next(moves) if _is_float(leaf) else leaf + steps, state)


def _is_float(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.floating)
