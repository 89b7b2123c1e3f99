"""The model for serving: kernels transposed and joined once, tokens as columns.

Axis letters are in this room's `__init__`; N = B T is the tokens of all rows side by side. A step
of decoding multiplies few tokens by a large kernel, and XLA:CPU packs the right-hand side of every
product: with the kernel on the left, [out, in] times [in, N], it packs the tokens instead. That
takes two thirds to three quarters of the time from 4 to 32 tokens (jax 0.10, float32, a kernel of
1 MB: 151 against 212 microseconds at 8, 290 against 414 at 32), and no longer for one token.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from dipaco.model.attention import attend
from dipaco.model.cache import write
from dipaco.model.config import ModelConfig, block_names
from dipaco.model.layers import rms_norm, rotary_table, rotate
from dipaco.model.spec import Parts, Tree

Blocks = Mapping[str, Mapping[str, jax.Array]]  # keys and values of each block, [B, G, S, K]


def prepare(config: ModelConfig, parts: Parts) -> dict[str, Tree]:
    """Parts for `extend` and `logits`: kernels [out, in] in the compute dtype.

    Takes any subset of the parts, so that a module can be prepared apart from a path.
    """
    return {name: _prepare_part(config, name, part) for name, part in parts.items()}


def extend(
    config: ModelConfig, prepared: Parts, tokens_BT: jax.Array, starts_B: jax.Array, blocks: Blocks
) -> tuple[jax.Array, dict[str, Any]]:
    """Runs T more tokens of each row through the blocks.

    Args:
      config: sizes; static under `jax.jit`.
      prepared: the parts of a path after `prepare`.
      tokens_BT: int32 token ids; padding at the end of a row is seen by no token before it.
      starts_B: int32, position of each row's first token: how many of its slots are valid.
      blocks: the cache; there must be a slot for each of the T tokens.

    Returns:
      Hidden states float32 [D, B T], before the final norm, and the cache with the tokens in it.
    """
    positions_BT = starts_B[:, None] + jnp.arange(tokens_BT.shape[1], dtype=jnp.int32)[None, :]
    rotary = rotary_table(positions_BT, config.head_size, config.rope_theta)
    slots_S = jnp.arange(_num_slots(blocks), dtype=jnp.int32)
    allowed_BTS = slots_S[None, None, :] <= positions_BT[:, :, None]

    x_DN = jnp.take(prepared["embed"]["table"], tokens_BT.reshape(-1), axis=0).T
    after = {}
    for name in block_names(config):
        attention, feed_forward = prepared[name]["attention"], prepared[name]["feed_forward"]
        added_DN, after[name] = _attend(
            config, attention, x_DN, rotary, starts_B, allowed_BTS, blocks[name]
        )
        x_DN = x_DN + added_DN
        x_DN = x_DN + _feed_forward(config, feed_forward, x_DN)
    return x_DN, after


def logits(config: ModelConfig, prepared: Parts, x_DN: jax.Array) -> jax.Array:
    """float32 [V, N]: logits of the token that follows each column of hidden states."""
    x_DN = _norm(x_DN, prepared["final_norm"]["scale"], config.norm_epsilon)
    head_VD = prepared["embed"]["table"] if config.tied_head else prepared["head"]["kernel"]
    return _product(config, head_VD, x_DN)


def _prepare_part(config: ModelConfig, name: str, part: Tree) -> Tree:
    transposed = lambda *kernels: jnp.concatenate(  # noqa: E731
        [jnp.asarray(kernel).T for kernel in kernels]
    ).astype(config.compute_dtype)
    if name == "head":
        return {"kernel": transposed(part["kernel"])}
    if name not in block_names(config):
        return jax.tree.map(jnp.asarray, part)
    attention, feed_forward = part["attention"], part["feed_forward"]
    norms = {key: value for key, value in attention.items() if key.endswith("norm")}
    return {
        "attention": {
            **jax.tree.map(jnp.asarray, norms),
            "query_key_value": transposed(*(attention[key] for key in ("query", "key", "value"))),
            "output": transposed(attention["output"]),
        },
        "feed_forward": {
            "norm": jnp.asarray(feed_forward["norm"]),
            "gate_up": transposed(feed_forward["gate"], feed_forward["up"]),
            "down": transposed(feed_forward["down"]),
        },
    }


def _attend(config, params, x_DN, rotary, starts_B, allowed_BTS, cache):
    batch, length = allowed_BTS.shape[:2]
    heads, kv_heads, size = config.num_heads, config.kv_heads, config.head_size
    x_DN = _norm(x_DN, params["norm"], config.norm_epsilon)
    joined_MN = _product(config, params["query_key_value"], x_DN)
    joined_BTMK = joined_MN.reshape(-1, size, batch, length).transpose(2, 3, 0, 1)
    q_BTHK, k_BTGK, v_BTGK = jnp.split(joined_BTMK, (heads, heads + kv_heads), axis=2)
    if config.qk_norm:
        q_BTHK = rms_norm(q_BTHK, params["query_norm"], config.norm_epsilon)
        k_BTGK = rms_norm(k_BTGK, params["key_norm"], config.norm_epsilon)
    q_BTHK, k_BTGK = rotate(q_BTHK, rotary), rotate(k_BTGK, rotary)
    cache = write(cache, k_BTGK.swapaxes(1, 2), v_BTGK.swapaxes(1, 2), starts_B[:, None])
    y_BTM = attend(q_BTHK, cache["key"], cache["value"], allowed_BTS, config.compute_dtype)
    y_MN = y_BTM.reshape(batch * length, heads * size).T
    return _product(config, params["output"], y_MN), cache


def _feed_forward(config, params, x_DN):
    x_DN = _norm(x_DN, params["norm"], config.norm_epsilon)
    gate_FN, up_FN = jnp.split(_product(config, params["gate_up"], x_DN), 2)
    return _product(config, params["down"], jax.nn.silu(gate_FN) * up_FN)


def _product(config, kernel_MN, x_NN):
    # The barrier keeps the tokens in columns: XLA folds a transpose before a product into the
    # product, which makes it the slow one again.
    x_NN = lax.optimization_barrier(x_NN.astype(config.compute_dtype))
    kernel_MN = kernel_MN.astype(config.compute_dtype)  # a tied head is still float32
    dimensions = (((1,), (0,)), ((), ()))
    return lax.dot_general(kernel_MN, x_NN, dimensions, preferred_element_type=jnp.float32)


def _norm(x_DN, scale_D, epsilon):
    """RMSNorm of each column."""
    mean_square_1N = jnp.mean(jnp.square(x_DN), axis=0, keepdims=True)
    return x_DN * lax.rsqrt(mean_square_1N + epsilon) * scale_D[:, None]


def _num_slots(blocks: Blocks) -> int:
    return blocks["block_00"]["key"].shape[2]
