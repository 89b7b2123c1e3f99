"""The outer optimiser: Nesterov momentum, one state per module, kept with the module."""

import optax

from dipaco.outer.config import OuterSettings


def nesterov(settings: OuterSettings) -> optax.GradientTransformation:
    """`u <- mu u + g; theta <- theta - lr (g + mu u)`; without momentum, plain descent.

    Source: DiLoCo (arXiv 2311.08105) section 2, DiPaCo Algorithm 1 line 15.
    """
    return optax.sgd(settings.learning_rate, momentum=settings.momentum or None, nesterov=True)
