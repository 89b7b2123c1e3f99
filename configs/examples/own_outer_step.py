"""Outer steps of one's own: Nesterov written out, equal to the built-in bit for bit, and Adam.

    python configs/examples/own_outer_step.py
    PYTHONPATH=configs/examples dipaco worker --run runs/own_outer_step

The first line trains `toy` with Adam, in half a minute; by the second, any machine takes
part.
"""

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


if __name__ == "__main__":
    import own_outer_step  # a worker imports it by this name, and cannot import a script

    config = dipaco.load_config("toy", ["outer.learning_rate=0.01"])
    rules = dipaco.Rules(outer_step=own_outer_step.adam)
    print(dipaco.run(config, "runs/own_outer_step", rules=rules).report)
