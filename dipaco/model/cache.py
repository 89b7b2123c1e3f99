"""The cache of keys and values for decoding, described like parameters.

A cache holds one document per row. Slot s of a row is the token at position s, so the number of
tokens alone says which slots are valid: `{"length": int32 [B], "block_00": {"key": [B, G, S, K],
"value": ...}, ...}`. Slots from `length` on may hold padding. No query sees them before they are
written again. Heads come before slots: the other order makes each step on CPU two thirds slower.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.nn import initializers

from dipaco.model.config import ModelConfig, block_names
from dipaco.model.spec import ParamSpec

Cache = Mapping[str, Any]


def describe_cache(config: ModelConfig, batch: int, slots: int) -> dict[str, Any]:
    """A `ParamSpec` for every array of a cache of `batch` rows and `slots` tokens."""
    shape = (batch, config.kv_heads, slots, config.head_size)
    axes = ("batch", "kv_heads", None, None)
    spec = ParamSpec(shape, jnp.dtype(config.compute_dtype), axes, initializers.zeros)
    length = ParamSpec((batch,), jnp.dtype(jnp.int32), ("batch",), initializers.zeros)
    return {
        "length": length,
        **{name: {"key": spec, "value": spec} for name in block_names(config)},
    }


def empty_cache(config: ModelConfig, batch: int, slots: int) -> dict[str, Any]:
    """A cache with no token in it, in the compute dtype."""
    return jax.tree.map(
        lambda spec: jnp.zeros(spec.shape, spec.dtype), describe_cache(config, batch, slots)
    )


def num_slots(cache: Cache) -> int:
    """Number of tokens that a row of the cache can hold."""
    return cache["block_00"]["key"].shape[2]


def write(
    kept: Mapping[str, jax.Array],
    k_BGTK: jax.Array,
    v_BGTK: jax.Array,
    positions_BT: jax.Array,
) -> dict[str, jax.Array]:
    """One block's keys and values with T new tokens in the slots from `positions_BT[:, 0]` on.

    The positions of a row are consecutive, so each row is one contiguous copy. There must be slots
    for all T, padding included: XLA moves a copy that would cross the end back, over valid tokens.
    """

    def put(row_GSK, new_GTK, start):
        return jax.lax.dynamic_update_slice(row_GSK, new_GTK.astype(row_GSK.dtype), (0, start, 0))

    def put_all(kept_BGSK, new_BGTK):
        if len(kept_BGSK) == 1:
            # `vmap` turns it into a scatter that keeps the old values: for one row XLA:CPU then
            # copies the whole cache four times a step, a tenth of the step's time.
            return put(kept_BGSK[0], new_BGTK[0], positions_BT[0, 0])[None]
        return jax.vmap(put)(kept_BGSK, new_BGTK, positions_BT[:, 0])

    return {"key": put_all(kept["key"], k_BGTK), "value": put_all(kept["value"], v_BGTK)}
