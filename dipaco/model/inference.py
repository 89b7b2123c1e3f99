"""The model for serving: kernels joined once, tokens between them as the products take them.

Axis letters are in this room's `__init__`, and N = B T is the tokens of all rows side by side. A
step of decoding multiplies few tokens by a large kernel. The machine decides their layout in that
product when a kernel is prepared (`kernels.tokens_are_rows`), and all values between the products
have this layout: `x` below is [N, D] if tokens are rows, else [D, N]. Returned hidden states have
tokens as columns on any machine, and logits have them as rows.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dipaco.model.attention import attend
from dipaco.model.cache import write
from dipaco.model.config import ModelConfig, block_names
from dipaco.model.kernels import serving_dtype, tokens_are_rows
from dipaco.model.layers import rms_norm, rotary_table, rotate
from dipaco.model.spec import Parts, Tree

Blocks = Mapping[str, Mapping[str, jax.Array]]  # keys and values of each block, [B, G, S, K]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Kernel:
    """A kernel as products take it."""

    values: Any  # [in, out] where tokens are rows, else [out, in]
    tokens_are_rows: bool = dataclasses.field(metadata={"static": True})

    @property
    def features_axis(self) -> int:
        """The features' axis in the tokens that it is multiplied with, and in the product."""
        return int(self.tokens_are_rows)

    @property
    def nbytes(self) -> int:
        """A leaf of a module, as `trees` counts them."""
        return self.values.nbytes


def prepare(
    config: ModelConfig, parts: Parts, has_tokens_as_rows: bool | None = None
) -> dict[str, Tree]:
    """Parts for `extend` and `logits`: kernels in the type of products (`kernels.serving_dtype`).

    Takes any subset of the parts, so that a module can be prepared apart from a path.

    Args:
      parts: parameters as trained.
      has_tokens_as_rows: the layout of products. None = the faster one on this machine.
    """
    if has_tokens_as_rows is None:
        has_tokens_as_rows = tokens_are_rows()
    return {
        name: _prepare_part(config, name, part, has_tokens_as_rows) for name, part in parts.items()
    }


def extend(
    config: ModelConfig, prepared: Parts, tokens_BT: jax.Array, starts_B: jax.Array, blocks: Blocks
) -> tuple[jax.Array, dict[str, Any]]:
    """Runs T more tokens of each row through the blocks.

    Args:
      config: static under `jax.jit`.
      prepared: the parts of a path after `prepare`.
      tokens_BT: int32 token ids. Padding at the end of a row is seen by no token before it.
      starts_B: int32, position of each row's first token: the number of its valid slots.
      blocks: the cache, with a free slot for each of the T tokens.

    Returns:
      Hidden states float32 [D, B T], before the final norm, and the cache with the tokens in it.
    """
    batch, length = tokens_BT.shape
    seen = seen_slots(config, starts_B, length, blocks)
    axis = features_axis(prepared)
    x = embed(prepared["embed"], tokens_BT.reshape(-1), axis)
    after = {}
    for name in block_names(config):
        block = prepared[name]
        joined_NMK = queries_keys_values(config, block, unit(config, x, axis))
        joined_BTMK = joined_NMK.reshape(batch, length, *joined_NMK.shape[1:])
        y_NM, after[name] = attend_cached(config, joined_BTMK, starts_B, seen, blocks[name])
        x = x + attention_output(config, block, y_NM if axis else y_NM.T)
        x = x + feed_forward(config, block, unit(config, x, axis))
    return as_columns(x, axis), after


def logits(config: ModelConfig, prepared: Parts, x_DN: jax.Array) -> jax.Array:
    """float32 [N, V]: logits of the token that follows each column of hidden states."""
    axis = features_axis(prepared)
    x = scaled(prepared["final_norm"]["scale"], unit(config, x_DN.T if axis else x_DN, axis), axis)
    return as_rows(head(config, prepared["embed" if config.tied_head else "head"], x, axis), axis)


# The pieces of the two above. Each takes one part or none, so that tokens may come from rows of
# several paths (`model.mixed`). `axis` is the features' axis, and `unit_x` is the result of `unit`.


def features_axis(prepared: Parts) -> int:
    """The features' axis of x: 1 if tokens are rows, [N, D], else 0, [D, N]."""
    return prepared["block_00"]["attention"]["output"].features_axis


def as_columns(x: jax.Array, axis: int) -> jax.Array:
    """[D, N], however x lies."""
    # XLA folds a transpose after a product into the product, which makes it one of the other kind,
    # or a slower one. The barrier keeps it out.
    return lax.optimization_barrier(x).T if axis else x


def as_rows(x: jax.Array, axis: int) -> jax.Array:
    """[N, D], however x lies."""
    return x if axis else lax.optimization_barrier(x).T  # see `as_columns`


class SeenSlots(NamedTuple):
    """Positions of new tokens, and the slots of the cache that each of them may see."""

    rotary: Any  # rows of `layers.rotary_table`
    allowed_BTS: jax.Array


def seen_slots(config: ModelConfig, starts_B: jax.Array, length: int, blocks: Blocks) -> SeenSlots:
    """For `length` new tokens of each row, the first of which are at `starts_B`."""
    positions_BT = starts_B[:, None] + jnp.arange(length, dtype=jnp.int32)[None, :]
    rotary = rotary_table(positions_BT, config.head_size, config.rope_theta)
    slots_S = jnp.arange(_num_slots(blocks), dtype=jnp.int32)
    return SeenSlots(rotary, slots_S[None, None, :] <= positions_BT[:, :, None])


def embed(part: Tree, tokens_N: jax.Array, axis: int) -> jax.Array:
    """Part `embed`: x."""
    x_ND = jnp.take(part["table"], tokens_N, axis=0)
    return x_ND if axis else x_ND.T


def unit(config: ModelConfig, x: jax.Array, axis: int) -> jax.Array:
    """Each token divided by its root mean square: RMSNorm without its scale."""
    mean_square = jnp.mean(jnp.square(x), axis=axis, keepdims=True)
    return x * lax.rsqrt(mean_square + config.norm_epsilon)


def scaled(scale_D: jax.Array, unit_x: jax.Array, axis: int) -> jax.Array:
    """RMSNorm of each token."""
    return unit_x * jnp.expand_dims(scale_D, 1 - axis)


def queries_keys_values(config: ModelConfig, block: Tree, unit_x: jax.Array) -> jax.Array:
    """Queries, keys and values of each token, the heads of all three side by side [N, M, K]."""
    params = block["attention"]
    kernel, size = params["query_key_value"], config.head_size
    axis = kernel.features_axis
    joined = _product(config, kernel, scaled(params["norm"], unit_x, axis))
    if axis:
        joined_NMK = joined.reshape(len(joined), -1, size)
    else:
        joined_NMK = joined.reshape(-1, size, joined.shape[1]).transpose(2, 0, 1)
    if not config.qk_norm:
        return joined_NMK
    q_NHK, k_NGK, v_NGK = _split_heads(config, joined_NMK)
    q_NHK = rms_norm(q_NHK, params["query_norm"], config.norm_epsilon)
    k_NGK = rms_norm(k_NGK, params["key_norm"], config.norm_epsilon)
    return jnp.concatenate([q_NHK, k_NGK, v_NGK], axis=1)


def attend_cached(
    config: ModelConfig,
    joined_BTMK: jax.Array,
    starts_B: jax.Array,
    seen: SeenSlots,
    cache: Mapping[str, jax.Array],
) -> tuple[jax.Array, Any]:
    """The values that the heads of T new tokens of each row read, [B T, H K], and the block's cache
    with these tokens.

    The function takes no parameters of the model, so the rows may be of any paths.
    """
    batch, length = joined_BTMK.shape[:2]
    q_BTHK, k_BTGK, v_BTGK = _split_heads(config, joined_BTMK)
    q_BTHK, k_BTGK = rotate(q_BTHK, seen.rotary), rotate(k_BTGK, seen.rotary)
    cache = write(cache, k_BTGK.swapaxes(1, 2), v_BTGK.swapaxes(1, 2), starts_B[:, None])
    y_BTM = attend(q_BTHK, cache["key"], cache["value"], seen.allowed_BTS, serving_dtype(config))
    return y_BTM.reshape(batch * length, -1), cache


def attention_output(config: ModelConfig, block: Tree, y: jax.Array) -> jax.Array:
    """Attention's addition to x. `y` is the values that the heads read, in the layout of x."""
    return _product(config, block["attention"]["output"], y)


def feed_forward(config: ModelConfig, block: Tree, unit_x: jax.Array) -> jax.Array:
    """The feed-forward layer's addition to x."""
    params = block["feed_forward"]
    axis = params["gate_up"].features_axis
    both = _product(config, params["gate_up"], scaled(params["norm"], unit_x, axis))
    gate, up = jnp.split(both, 2, axis=axis)
    return _product(config, params["down"], jax.nn.silu(gate) * up)


def head(config: ModelConfig, part: Tree, x: jax.Array, axis: int) -> jax.Array:
    """Part `head`, or `embed` where they are tied: logits float32, as x lies."""
    if not config.tied_head:
        return _product(config, part["kernel"], x)
    table = Kernel(part["table"], tokens_are_rows=False)  # [V, D], and float32
    logits_VN = _product(config, table, as_columns(x, axis))
    return as_rows(logits_VN, 0) if axis else logits_VN


def _prepare_part(config: ModelConfig, name: str, part: Tree, has_tokens_as_rows: bool) -> Tree:
    def joined(*kernels: Any) -> Kernel:
        values = jnp.concatenate([jnp.asarray(kernel) for kernel in kernels], axis=1)
        values = values if has_tokens_as_rows else values.T
        return Kernel(values.astype(serving_dtype(config)), has_tokens_as_rows)

    if name == "head":
        return {"kernel": joined(part["kernel"])}
    if name not in block_names(config):
        return jax.tree.map(jnp.asarray, part)
    attention, feed_forward = part["attention"], part["feed_forward"]
    norms = {key: value for key, value in attention.items() if key.endswith("norm")}
    return {
        "attention": {
            **jax.tree.map(jnp.asarray, norms),
            "query_key_value": joined(*(attention[key] for key in ("query", "key", "value"))),
            "output": joined(attention["output"]),
        },
        "feed_forward": {
            "norm": jnp.asarray(feed_forward["norm"]),
            "gate_up": joined(feed_forward["gate"], feed_forward["up"]),
            "down": joined(feed_forward["down"]),
        },
    }


def _split_heads(config, joined):
    """Queries, keys and values of [..., M, K]."""
    return jnp.split(joined, (config.num_heads, config.num_heads + config.kv_heads), axis=-2)


def _product(config: ModelConfig, kernel: Kernel, x: jax.Array) -> jax.Array:
    """float32 [N, out] of x [N, in] where tokens are rows, else [out, N] of [in, N]."""
    dtype, dimensions = serving_dtype(config), (((1,), (0,)), ((), ()))
    # The barrier keeps the transpose before the product (see `as_columns`).
    values, x = kernel.values.astype(dtype), lax.optimization_barrier(x.astype(dtype))
    both = (x, values) if kernel.tokens_are_rows else (values, x)
    return lax.dot_general(*both, dimensions, preferred_element_type=jnp.float32)


def _num_slots(blocks: Blocks) -> int:
    return blocks["block_00"]["key"].shape[2]
