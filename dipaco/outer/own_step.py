"""A user's outer step: any optimiser of a whole module, in the place of Nesterov.

A rule is a function of the outer settings that returns the pair (init, update) of optax, two pure
functions: `init(module) -> state`, `update(gradient, state, module) -> (updates, state)`. So any
optimiser of optax is one. It gets the whole module, and not one block after another as `step.py`
works, since a norm or a count belongs to the module. All that it computes is in memory at once.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import optax

from dipaco import trees
from dipaco.outer.config import OuterSettings
from dipaco.outer.errors import StructureMismatch

OuterRule = Callable[[OuterSettings], optax.GradientTransformation]
WHOLE = "module"  # the state is of all parts together


def fresh_by(rule: OuterRule, settings: OuterSettings, module: Mapping[str, Any]) -> dict[str, Any]:
    """The outer state before the first step."""
    return {WHOLE: jax.tree.map(np.asarray, rule(settings).init(_float32(module)))}


def step_by(
    rule: OuterRule,
    settings: OuterSettings,
    before: Mapping[str, Any],
    gradient: Mapping[str, Any],
    state: Mapping[str, Any],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """`before + updates` with the types of `before`, and the new state.

    Args:
      gradient: float32, the rescaled mean of its outer gradients.
      state: from `fresh_by`, or from the step before.

    Raises:
      StructureMismatch: the updates, or the state, have other parts or shapes than they should.
    """
    old = _float32(before)
    updates, new_state = rule(settings).update(gradient, state[WHOLE], old)
    updates, new_state = _float32(updates), jax.tree.map(np.asarray, new_state)
    for what, given, returned in (
        ("updates", old, updates),
        ("state", state[WHOLE], new_state),
    ):
        difference = trees.difference(_by_name(given), _by_name(returned))
        if difference is not None:
            raise StructureMismatch(what=f"An own outer step ({what})", difference=difference)
    after = jax.tree.map(
        lambda kept, leaf, update: (leaf + update).astype(kept.dtype, copy=False),
        *(before, old, updates),
    )
    return after, {WHOLE: new_state}


def _float32(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), tree)


def _by_name(tree: Any) -> dict[str, Any]:
    leaves, _ = jax.tree.flatten_with_path(tree)
    return {jax.tree_util.keystr(path): leaf for path, leaf in leaves}
