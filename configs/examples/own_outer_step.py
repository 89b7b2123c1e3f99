"""Outer steps of one's own: Nesterov, equal to the built-in bit for bit; Adam; isotropic merging.

    python configs/examples/own_outer_step.py
    PYTHONPATH=configs/examples dipaco worker --run runs/own_outer_step

The first line trains `toy` with Adam, in half a minute. Any machine takes part by the second."""

import jax
import numpy as np
import optax

import dipaco
from dipaco.outer.config import OuterSettings


def nesterov(settings: OuterSettings) -> optax.GradientTransformation:
    """`u <- mu u + g; theta <- theta - lr (g + mu u)`, on trees of NumPy arrays, one a module."""
    rate, mu = settings.learning_rate, settings.momentum

    def init(params):
        return jax.tree.map(np.zeros_like, params)

    def update(updates, state, params=None):
        state = jax.tree.map(lambda g, u: g + mu * u, updates, state)
        return jax.tree.map(lambda g, u: -rate * (g + mu * u), updates, state), state

    return optax.GradientTransformation(init, update)


def adam(settings: OuterSettings) -> optax.GradientTransformation:
    """Any optimiser of optax is an outer step."""
    return optax.adam(settings.learning_rate, b1=settings.momentum)


def isotropic(settings: OuterSettings) -> optax.GradientTransformation:
    """Isotropic merging (Iso-C, arXiv 2502.04959), then Nesterov: where a matrix's mean outer
    gradient is U diag(s) V^T, a block moves by mean(s) U V^T, as far in every direction."""

    def merged(mean, _):
        return mean | {p: jax.tree.map(evened, mean[p]) for p in mean if p.startswith("block_")}

    return optax.chain(optax.stateless(merged), nesterov(settings))


def evened(leaf: np.ndarray) -> np.ndarray:
    """A vector stays. Directions that come from rounding stay out: a matrix of rank r stays one."""
    if leaf.ndim != 2:
        return leaf
    left, singular, right = np.linalg.svd(leaf.astype(np.float64), full_matrices=False)
    smallest = singular.max(initial=0.0) * max(leaf.shape) * np.finfo(np.float32).eps
    rank = max(int((singular > smallest).sum()), 1)
    return (singular.sum() / rank * (left[:, :rank] @ right[:rank])).astype(np.float32)


if __name__ == "__main__":
    import own_outer_step  # a worker imports it by this name, and cannot import a script

    toy = dipaco.load_config("toy", ["outer.learning_rate=0.01"])
    own = dipaco.Rules(outer_step=own_outer_step.adam)
    print(dipaco.run(toy, "runs/own_outer_step", rules=own).report)
