"""Causal attention within segments in a kernel for TPUs: JAX's splash attention."""

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
LARGEST_BLOCK, MOST_KEYS = 512, 1024  # keys of which the gradient is computed at once
SEQ_MINOR = splash.QKVLayout.SEQ_MINOR  # heads of 64 values would be filled up to 128


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
        around = jax.sharding.get_abstract_mesh()
        if divided := set(around.manual_axes):  # a piece of rows of one device
            mesh, rows = around, None
        place = PartitionSpec(rows, "tensor" if divides else None)
        of_device = jax.shard_map(
            of_device,
            mesh=mesh,
            in_specs=(place, place, place, PartitionSpec(rows)),
            out_specs=place,
            axis_names=set(mesh.axis_names) - divided,
            check_vma=False,  # a kernel does not say along which axes its result differs
        )
    y_BHTK = of_device(*heads, segments_BT)
    y_BTHK = y_BHTK.swapaxes(1, 2)[:, :length]
    return y_BTHK.astype(jnp.float32).reshape(batch, length, num_heads * size)


def unmasked_blocks(length: int, is_gradient: bool) -> float:
    """The share of its blocks that the kernel computes, by its own list: the mask leaves out the
    others.
    """
    kernel = _splash_kernel(1, length, is_interpreted=False)
    listed = kernel.dkv_mask_info if is_gradient else kernel.fwd_mask_info
    return float(np.mean(np.asarray(listed.block_mask) > 0))


def _splash_kernel(num_heads: int, length: int, is_interpreted: bool) -> Any:
    block = next(block for block in range(LARGEST_BLOCK, 0, -LANES) if length % block == 0)
    keys = max(n for n in range(block, max(MOST_KEYS, block) + 1, block) if length % n == 0)
    return splash.make_splash_mha_single_device(
        masks.MultiHeadMask([masks.CausalMask((length, length))] * num_heads),
        block_sizes=splash.BlockSizes(
            block_q=block,
            block_kv=block,
            block_q_dkv=block,
            block_kv_dkv=keys,
            block_kv_dkv_compute=block,
            use_fused_bwd_kernel=True,
            q_layout=SEQ_MINOR,
            k_layout=SEQ_MINOR,
            v_layout=SEQ_MINOR,
        ),
        residual_checkpoint_name=KEPT,
        interpret=is_interpreted,
    )
