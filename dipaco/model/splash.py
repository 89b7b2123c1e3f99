"""Causal attention within segments in a kernel for TPUs: JAX's splash attention."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
from jax.sharding import NamedSharding, PartitionSpec

from dipaco.model.kernels import KEPT

LANES = 128  # the kernel takes lengths that are multiples of it
LARGEST_BLOCK = 512


def attend_on_tpu(
    q_BTHK: jax.Array,
    k_BTGK: jax.Array,
    v_BTGK: jax.Array,
    segments_BT: jax.Array | None,
    rows_sharding: NamedSharding | None = None,
    *,
    is_interpreted: bool = False,
) -> jax.Array:
    """`attend_causally` in JAX's kernel for TPUs (splash attention), which never writes scores to
    memory. The result is rounded to the type of the inputs on the way.

    Rows are filled up to a multiple of 128 tokens. Real tokens do not see the others, which are
    later.

    Args:
      rows_sharding: places of the rows on a mesh. XLA divides no kernel by itself, so each device
        gets its rows, and its heads where `tensor` divides them. None = one device.
      is_interpreted: runs it on a CPU, step by step.
    """
    batch, length, num_heads, size = q_BTHK.shape
    padding = -length % LANES
    places = ((0, 0), (0, padding), (0, 0), (0, 0))
    # Without a head's own axis, which would be filled up to 128 values.
    v_BTGK = checkpoint_name(v_BTGK.reshape(batch, length, -1), KEPT).reshape(v_BTGK.shape)
    heads = [jnp.pad(x, places).swapaxes(1, 2) for x in (q_BTHK * size**-0.5, k_BTGK, v_BTGK)]
    if segments_BT is None:
        segments_BT = jnp.zeros((batch, length), jnp.int32)
    segments_BT = jnp.pad(segments_BT, places[:2])

    def of_device(q_BHTK, k_BGTK, v_BGTK, segments_BT):
        kernel = _splash_kernel(q_BHTK.shape[1], length + padding, is_interpreted)
        each = jax.vmap(lambda q, k, v, ids: kernel(q, k, v, splash.SegmentIds(q=ids, kv=ids)))
        return each(q_BHTK, k_BGTK, v_BGTK, segments_BT)

    if rows_sharding is not None:
        mesh, (rows,) = rows_sharding.mesh, rows_sharding.spec
        divides = k_BTGK.shape[2] % mesh.shape["tensor"] == 0
        place = PartitionSpec(rows, "tensor" if divides else None)
        of_device = jax.shard_map(
            of_device,
            mesh=mesh,
            in_specs=(place, place, place, PartitionSpec(rows)),
            out_specs=place,
            check_vma=False,  # a kernel does not say along which axes its result differs
        )
    y_BHTK = of_device(*heads, segments_BT)
    y_BTHK = y_BHTK.swapaxes(1, 2)[:, :length]
    return y_BTHK.astype(jnp.float32).reshape(batch, length, num_heads * size)


def unmasked_blocks(length: int) -> float:
    """The share of its blocks that the kernel computes, by its own list: the mask leaves out the
    others. Backward it has blocks of the same size.
    """
    listed = _splash_kernel(1, length, is_interpreted=False).fwd_mask_info.block_mask
    return float(np.mean(np.asarray(listed) > 0))


def _splash_kernel(num_heads: int, length: int, is_interpreted: bool) -> Any:
    block = next(block for block in range(LARGEST_BLOCK, 0, -LANES) if length % block == 0)
    names = [field.name for field in dataclasses.fields(splash.BlockSizes)]
    sizes: Any = {name: block for name in names if name.startswith("block_")}
    return splash.make_splash_mha_single_device(
        masks.MultiHeadMask([masks.CausalMask((length, length))] * num_heads),
        block_sizes=splash.BlockSizes(**sizes),
        residual_checkpoint_name=KEPT,
        interpret=is_interpreted,
    )
