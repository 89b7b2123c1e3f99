"""Parameters as descriptions: shape, dtype, logical axes and initialiser, without any array.

One tree of descriptions is read in several ways: `initialise` makes the arrays, `sharding.py`
places them, the layers declare them, a store checks what it loads. Describing takes well under a
millisecond, while tracing an `init` takes hundreds.
"""

import dataclasses
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.nn import initializers

from dipaco.model.config import ModelConfig, block_names, part_names

Tree = Any  # a nested dict with arrays (or descriptions) as leaves
Parts = Mapping[str, Tree]  # part name -> its parameters
Initialiser = Callable[..., jax.Array]  # (key, shape, dtype) -> values


@dataclasses.dataclass(frozen=True)
class ParamSpec:
    """One parameter without its values."""

    shape: tuple[int, ...]
    dtype: jnp.dtype
    axes: tuple[str | None, ...]  # logical names, which `sharding.RULES` gives mesh axes
    init: Initialiser


def describe(config: ModelConfig) -> dict[str, Tree]:
    """Every part of the model, a `ParamSpec` at each leaf, in the order of `part_names`."""
    vocabulary, width = config.vocab_size, config.d_model
    # 0.02 is Llama's. The first norm would take unit variance as well.
    parts = {
        "embed": {"table": _matrix(vocabulary, width, ("vocab", "embed"), standard_deviation=0.02)},
        **{name: _block(config) for name in block_names(config)},
        "final_norm": {"scale": _ones(width)},
        "head": {"kernel": _matrix(width, vocabulary, ("embed", "vocab"))},
    }
    return {name: parts[name] for name in part_names(config)}


def initialise(config: ModelConfig, key: jax.Array) -> dict[str, Tree]:
    """New parameters. A leaf's key depends on its part and its name only, not on other parts."""

    def fresh(part: str) -> Tree:
        part_key = _fold_name(key, part)
        return jax.tree_util.tree_map_with_path(
            lambda path, spec: spec.init(
                _fold_name(part_key, jax.tree_util.keystr(path)), spec.shape, spec.dtype
            ),
            specs[part],
        )

    specs = describe(config)
    return {part: fresh(part) for part in specs}


def _fold_name(key: jax.Array, name: str) -> jax.Array:
    return jax.random.fold_in(key, zlib.crc32(name.encode()))


def _block(config: ModelConfig) -> Tree:
    width, hidden, size = config.d_model, config.d_ff, config.head_size
    queries, keys = config.num_heads * size, config.kv_heads * size
    # Block outputs are scaled down with depth, so that their sum starts at a fixed size (GPT-2).
    damping = (2 * config.num_layers) ** -0.5
    attention = {
        "norm": _ones(width),
        "query": _matrix(width, queries, ("embed", "heads")),
        "key": _matrix(width, keys, ("embed", "kv_heads")),
        "value": _matrix(width, keys, ("embed", "kv_heads")),
        "output": _matrix(queries, width, ("heads", "embed"), gain=damping),
    }
    if config.qk_norm:
        attention |= {"query_norm": _ones(size), "key_norm": _ones(size)}
    feed_forward = {
        "norm": _ones(width),
        "gate": _matrix(width, hidden, ("embed", "feed_forward")),
        "up": _matrix(width, hidden, ("embed", "feed_forward")),
        "down": _matrix(hidden, width, ("feed_forward", "embed"), gain=damping),
    }
    return {"attention": attention, "feed_forward": feed_forward}


def _matrix(
    num_rows: int,
    num_columns: int,
    axes: tuple[str, str],
    *,
    gain: float = 1.0,
    standard_deviation: float | None = None,
) -> ParamSpec:
    """Normal values. Their default variance, gain^2 / num_rows, keeps the input's scale."""
    deviation = gain * num_rows**-0.5 if standard_deviation is None else standard_deviation
    init = initializers.normal(deviation)
    return ParamSpec((num_rows, num_columns), jnp.dtype(jnp.float32), axes, init)


def _ones(size: int) -> ParamSpec:
    return ParamSpec((size,), jnp.dtype(jnp.float32), (None,), initializers.ones)
