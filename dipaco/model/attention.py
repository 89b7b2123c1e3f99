"""Causal attention within segments, with and without a cache of keys and values.

Axis letters are in this room's `__init__`. Scores, softmax and sums are float32 for any compute
dtype: a bfloat16 score of 30 is exact to 1/8 only, which the exponential turns into 13 %.
"""

import functools
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax
from jax.sharding import NamedSharding

from dipaco.model.cache import write
from dipaco.model.config import ModelConfig
from dipaco.model.kernels import attention_kernel, result_dtype
from dipaco.model.layers import declare, dense, rms_norm, rotate
from dipaco.model.spec import ParamSpec

# Blocks of 64 queries were slower than no blocks at all (CPU, 256 tokens).
LEAST_BLOCK, MOST_BLOCKS = 128, 4  # queries in a block, blocks in a row


class Seen(NamedTuple):
    """The slots that a token may attend to."""

    allowed_BTS: jax.Array  # bool [B or 1, T, S]
    segments_BT: jax.Array | None = None  # without a cache: the same, where rows are packed


class Attention(nn.Module):
    """Norm, queries, keys and values, rotary, softmax, output. A key head serves R query heads."""

    specs: Mapping[str, ParamSpec]
    config: ModelConfig
    layer: int = 0  # number of this layer in the program, for `attend_fused`
    rows_sharding: NamedSharding | None = None  # places of the rows on a mesh, for `attend_on_tpu`

    @nn.compact
    def __call__(
        self,
        x_BTD: jax.Array,
        rotary: jax.Array,
        positions_BT: jax.Array,
        seen: Seen,
        cache: Mapping[str, jax.Array] | None = None,
    ) -> tuple[jax.Array, Any]:
        """The output added to x, and the cache with these tokens in it (None without a cache)."""
        allowed_BTS = seen.allowed_BTS
        config, params = self.config, declare(self, self.specs)
        dtypes = config.compute_dtype, result_dtype(config)
        x_BTD = rms_norm(x_BTD, params["norm"], config.norm_epsilon)
        q_BTHK = _heads(dense(x_BTD, params["query"], *dtypes), config.num_heads)
        k_BTGK = _heads(dense(x_BTD, params["key"], *dtypes), config.kv_heads)
        v_BTGK = _heads(dense(x_BTD, params["value"], *dtypes), config.kv_heads)
        if config.qk_norm:
            q_BTHK = rms_norm(q_BTHK, params["query_norm"], config.norm_epsilon)
            k_BTGK = rms_norm(k_BTGK, params["key_norm"], config.norm_epsilon)
        kernel = "plain" if cache is not None else attention_kernel(config, x_BTD.shape[1])
        q_BTHK, k_BTGK = rotate(q_BTHK, rotary), rotate(k_BTGK, rotary)

        k_BGSK, v_BGSK = k_BTGK.swapaxes(1, 2), v_BTGK.swapaxes(1, 2)
        if kernel == "cudnn":
            fused = functools.partial(attend_fused, layer=self.layer)
            y_BTD = fused(q_BTHK, k_BTGK, v_BTGK, allowed_BTS, config.compute_dtype)
        elif kernel == "splash":
            from dipaco.model.splash import attend_on_tpu  # Pallas takes a while to load

            qkv = (x.astype(config.compute_dtype) for x in (q_BTHK, k_BTGK, v_BTGK))
            y_BTD = attend_on_tpu(*qkv, seen.segments_BT, self.rows_sharding)
        elif cache is None:
            y_BTD = attend_causally(q_BTHK, k_BGSK, v_BGSK, allowed_BTS, config.compute_dtype)
        else:
            cache = write(cache, k_BGSK, v_BGSK, positions_BT)
            k_BGSK, v_BGSK = cache["key"], cache["value"]
            y_BTD = attend(q_BTHK, k_BGSK, v_BGSK, allowed_BTS, config.compute_dtype)
        return dense(y_BTD, params["output"], *dtypes), cache


def attend_causally(
    q_BTHK: jax.Array,
    k_BGTK: jax.Array,
    v_BGTK: jax.Array,
    allowed_BTT: jax.Array,
    compute_dtype: str,
) -> jax.Array:
    """`attend` for tokens that may not see later ones: each block of queries takes only the keys up
    to the block's end.

    Half of the full products would be masked. Two blocks compute three quarters of them, four
    five eighths. More blocks save little and take longer to compile.
    """
    length = q_BTHK.shape[1]
    block = max(LEAST_BLOCK, -(-length // MOST_BLOCKS))
    y_BTM = []
    for start in range(0, length, block):
        stop = min(start + block, length)
        seen = k_BGTK[:, :, :stop], v_BGTK[:, :, :stop], allowed_BTT[:, start:stop, :stop]
        y_BTM.append(attend(q_BTHK[:, start:stop], *seen, compute_dtype))
    return jnp.concatenate(y_BTM, axis=1)


def attend_fused(
    q_BTHK: jax.Array,
    k_BTGK: jax.Array,
    v_BTGK: jax.Array,
    allowed_BTT: jax.Array,
    compute_dtype: str,
    layer: int = 0,
    implementation: Literal["cudnn", "xla"] = "cudnn",
) -> jax.Array:
    """`attend_causally` in one kernel that never writes scores to memory. The result is rounded to
    `compute_dtype` on the way.

    Layers differ in the scale that the kernel is given, each by another power of two, which its
    queries take up: the bits are the same. Where equal bits are asked for, XLA loses the gradient's
    kernel of a call that is like another one of the program (openxla/xla#46500, seen in jax 0.11:
    "IndexError: absl::container_internal::raw_hash_map<>::at").

    Segments reach the kernel as a bias of 0 or a large negative number, [B, 1, T, T] of 2 bytes a
    pair: JAX's public interface to it has no mask of segments. (Without one, tokens silently attend
    to earlier documents.) `jax.vmap` over a call with a bias is refused: its rule wants a bias for
    every head.
    """
    batch, length, num_heads, size = q_BTHK.shape
    # 1, 2, 1/2, 4, 1/4, ...: far from the ends of the range however deep the model is.
    power = 2.0 ** ((layer + 1) // 2 * (1 if layer % 2 else -1))
    q_BTHK, k_BTGK, v_BTGK = (x.astype(compute_dtype) for x in (q_BTHK * power, k_BTGK, v_BTGK))
    # A mask that all rows share is the causal one, which the kernel applies by itself.
    is_shared = len(allowed_BTT) < batch
    y_BTHK = jax.nn.dot_product_attention(
        q_BTHK,
        k_BTGK,
        v_BTGK,
        mask=None if is_shared else allowed_BTT[:, None],
        scale=size**-0.5 / power,
        is_causal=True,
        implementation=implementation,
    )
    return y_BTHK.astype(jnp.float32).reshape(batch, length, num_heads * size)


def attend(
    q_BTHK: jax.Array,
    k_BGSK: jax.Array,
    v_BGSK: jax.Array,
    allowed_BTS: jax.Array,
    compute_dtype: str,
) -> jax.Array:
    """softmax(q k / sqrt(K)) v where allowed -> float32 [B, T, H K], the heads side by side.

    `allowed_BTS` may have B = 1 for all rows. Each query must be allowed at least one slot.
    """
    batch, length, num_heads, size = q_BTHK.shape
    kv_heads = k_BGSK.shape[1]
    # The R queries of a key head are further rows of one product, so no key is repeated.
    q_BHTK = (q_BTHK * size**-0.5).swapaxes(1, 2)
    q_BGNK = q_BHTK.reshape(batch, kv_heads, num_heads // kv_heads * length, size)
    y_BGNK = _weighted_sum(q_BGNK, k_BGSK, v_BGSK, allowed_BTS, compute_dtype)
    y_BHTK = y_BGNK.reshape(batch, num_heads, length, size)
    return y_BHTK.swapaxes(1, 2).reshape(batch, length, num_heads * size)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def _weighted_sum(q_BGNK, k_BGSK, v_BGSK, allowed_BTS, compute_dtype):
    """softmax(q k) v, N = R T. The gradient is written by hand, as XLA:CPU runs it faster.

    The gradient of w = softmax(s) is w (dw - sum_S w dw). The sum equals the sum of y dy over K,
    which has S / K times fewer terms (FlashAttention, arXiv 2205.14135, appendix B.2).
    """
    return _weighted_sum_forward(q_BGNK, k_BGSK, v_BGSK, allowed_BTS, compute_dtype)[0]


def _weighted_sum_forward(q_BGNK, k_BGSK, v_BGSK, allowed_BTS, compute_dtype):
    q_BGNK, k_BGSK, v_BGSK = (x.astype(compute_dtype) for x in (q_BGNK, k_BGSK, v_BGSK))
    scores_BGNS = _product("BGNK,BGSK->BGNS", q_BGNK, k_BGSK)
    repeats = q_BGNK.shape[2] // allowed_BTS.shape[1]
    allowed_B1NS = jnp.tile(allowed_BTS, (1, repeats, 1))[:, None]
    scores_BGNS = jnp.where(allowed_B1NS, scores_BGNS, jnp.finfo(jnp.float32).min)
    weights_BGNS = jax.nn.softmax(scores_BGNS, axis=-1)
    y_BGNK = _product("BGNS,BGSK->BGNK", weights_BGNS.astype(compute_dtype), v_BGSK)
    return y_BGNK, (q_BGNK, k_BGSK, v_BGSK, weights_BGNS, y_BGNK)


def _weighted_sum_backward(compute_dtype, saved, dy_BGNK):
    q_BGNK, k_BGSK, v_BGSK, weights_BGNS, y_BGNK = saved
    # The barriers are here for the same reason as in `layers.dense`.
    dy_BGNK = lax.optimization_barrier(dy_BGNK)
    dy_rounded_BGNK = dy_BGNK.astype(compute_dtype)
    dv_BGSK = _product("BGNS,BGNK->BGSK", weights_BGNS.astype(compute_dtype), dy_rounded_BGNK)
    dweights_BGNS = _product("BGNK,BGSK->BGNS", dy_rounded_BGNK, v_BGSK)
    inner_BGN1 = jnp.sum(y_BGNK * dy_BGNK, axis=-1, keepdims=True)
    dscores_BGNS = weights_BGNS * (dweights_BGNS - inner_BGN1)
    dscores_BGNS = lax.optimization_barrier(dscores_BGNS.astype(compute_dtype))
    dq_BGNK = _product("BGNS,BGSK->BGNK", dscores_BGNS, k_BGSK)
    dk_BGSK = _product("BGNS,BGNK->BGSK", dscores_BGNS, q_BGNK)
    return dq_BGNK, dk_BGSK, dv_BGSK, None


_weighted_sum.defvjp(_weighted_sum_forward, _weighted_sum_backward)


def _product(subscripts: str, a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.einsum(subscripts, a, b, preferred_element_type=jnp.float32)


def _heads(x_BTN: jax.Array, num_heads: int) -> jax.Array:
    batch, length, width = x_BTN.shape
    return x_BTN.reshape(batch, length, num_heads, width // num_heads)
