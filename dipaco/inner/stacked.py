"""Several small paths in one program on one device, each with its own parameters, state and batch.

A path of a few million parameters does not fill an accelerator; P of them, stacked along a new
first axis, may. `map` runs them one after another inside one program, and gives the bits that each
gives alone; `vmap` makes one batched product of P products, which an accelerator runs sooner, in
another order of sums.

On CPU neither wins: two paths of 0.7 M parameters took 0.9 (`vmap`) and 1.8 (`map`) of the time of
one by one (2 rows of 32 tokens, bfloat16, two busy cores: a rough figure).
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dipaco.inner.state import PathState
from dipaco.inner.step import Batch, StepMetrics

Step = Callable[[PathState, Batch, jax.Array], tuple[PathState, StepMetrics]]


def make_stacked_step(step: Step, stacking: str) -> Any:
    """Compiles `step` for stacked paths: every leaf of state, batch and metrics has a first axis
    [P]. The learning rate is that of all; the state passed in is given up (donated).

    Args:
      step: from `make_step`, for a mesh of one device.
      stacking: `map` or `vmap`.
    """

    take, put = jax.lax.dynamic_index_in_dim, jax.lax.dynamic_update_index_in_dim

    def alone(state, batch, rate):
        # A branch is compiled by itself. Fused with the slices around it, a step's products and
        # sums would meet in other fusions, where a product that is added is rounded once and not
        # twice; a barrier does not help, XLA:CPU takes it away before it fuses.
        none = jax.tree.map(
            lambda leaf: jnp.zeros(leaf.shape, leaf.dtype),
            jax.eval_shape(step, state, batch, rate)[1],
        )
        return jax.lax.cond(
            rate >= 0, step, lambda state, batch, rate: (state, none), state, batch, rate
        )

    def mapped(states, batches, rate):
        # The states are carried and not mapped over: so each path's new state is written where its
        # old one was, and P + 1 states are alive, not 2 P.
        def one(states, turn):
            index, batch = turn
            state = jax.tree.map(lambda leaves: take(leaves, index, keepdims=False), states)
            state, metrics = alone(state, batch, rate)
            return jax.tree.map(
                lambda leaves, leaf: put(leaves, leaf, index, 0), states, state
            ), metrics

        indices = jnp.arange(states.step.shape[0])
        return jax.lax.scan(one, states, (indices, batches))

    def batched(states, batches, rate):
        return jax.vmap(step, in_axes=(0, 0, None))(states, batches, rate)

    return jax.jit({"map": mapped, "vmap": batched}[stacking], donate_argnums=0)


def stack(trees: Sequence[Any]) -> Any:
    """P trees of equal structure -> one, on the host, with a first axis [P] at every leaf."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def unstack(tree: Any, index: int) -> Any:
    """The tree of one path."""
    return jax.tree.map(lambda leaf: leaf[index], tree)
