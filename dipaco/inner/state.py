"""The state of one path: what it carries from step to step."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dipaco.model.config import ModelConfig
from dipaco.model.spec import describe

Tree = Any


class PathState(NamedTuple):
    """Parameters of a path, its optimiser's state, and the number of inner steps taken."""

    parts: Tree  # part name -> parameters
    optimizer: Tree  # optax state. Stays with the path from phase to phase (DiLoCo section 6.1)
    step: Any  # int32 scalar: inner steps taken over all phases, and so the data position


def state_like(model: ModelConfig, optimizer: optax.GradientTransformation) -> PathState:
    """Shapes and types of a `PathState`."""
    parts = jax.tree.map(lambda spec: jax.ShapeDtypeStruct(spec.shape, spec.dtype), describe(model))
    return jax.eval_shape(lambda parts: fresh(parts, optimizer), parts)


def fresh(parts: Tree, optimizer: optax.GradientTransformation) -> PathState:
    """A path at its first step: the optimiser's state is zero."""
    return PathState(parts, optimizer.init(parts), jnp.zeros((), jnp.int32))
