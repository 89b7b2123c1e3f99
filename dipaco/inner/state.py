"""The state of one path: what it carries from step to step."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dipaco.model.config import ModelConfig
from dipaco.model.spec import describe

Tree = Any


class PathState(NamedTuple):
    """Parameters of a path, its optimiser's state, and its next inner step."""

    parts: Tree  # part name -> parameters
    optimizer: Tree  # optax state. Stays with the path from phase to phase (DiLoCo section 6.1)
    step: Any  # int32 scalar: step of the arm's schedule. Phases that the path skipped count


class Handover:
    """A path's state on its way to the code that trains it on. Nothing else refers to the state
    then, so that its memory is free once it is placed on devices.
    """

    def __init__(self, state: PathState):
        self._state: PathState | None = state

    def take(self) -> PathState:
        """The state. It can be taken once."""
        state, self._state = self._state, None
        assert state is not None, "the state was taken before"
        return state


def state_like(model: ModelConfig, optimizer: optax.GradientTransformation) -> PathState:
    """Shapes and types of a `PathState`."""
    parts = jax.tree.map(lambda spec: jax.ShapeDtypeStruct(spec.shape, spec.dtype), describe(model))
    return jax.eval_shape(lambda parts: fresh(parts, optimizer), parts)


def fresh(parts: Tree, optimizer: optax.GradientTransformation) -> PathState:
    """A path at its first step: the optimiser's state is zero."""
    return PathState(parts, optimizer.init(parts), jnp.zeros((), jnp.int32))
