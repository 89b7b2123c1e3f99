"""Tokens that the shard of a path does not have, whose rows may stay as they are. Not in the paper.

The softmax pushes the logit of such a token down at every step, and AdamW makes full steps of that
weak push. The mean of two paths then undoes the learning of the path that has the token. With
`inner.freeze_absent_tokens` these tokens stay in the softmax, and their rows of embedding and head
do not move: no gradient, no AdamW step, no decay.

A batch then says which tokens its shard has, under `PRESENT`. A batch without it (the base model
and dense baselines, which have all text) moves every row.

Axes: V tokens of the vocabulary.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from dipaco import trees
from dipaco.model.config import VOCABULARY_AXIS

PRESENT = "present_V"  # key in a batch: bool [V], true for tokens of the path's shard


def rows_of(batch: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays of a batch whose first axis is its rows."""
    return {name: leaf for name, leaf in batch.items() if name != PRESENT}


def freeze_absent(tree: Any, batch: Mapping[str, Any]) -> Any:
    """A gradient or an update, shaped like the parameters, with 0 at the rows that do not move."""
    present_V = batch.get(PRESENT)
    if present_V is None:
        return tree

    def keep(name: str, leaf: jax.Array) -> jax.Array:
        if name not in VOCABULARY_AXIS:
            return leaf
        return jnp.where(jnp.expand_dims(present_V, 1 - VOCABULARY_AXIS[name]), leaf, 0.0)

    return trees.unflatten({name: keep(name, leaf) for name, leaf in trees.flatten(tree)})
