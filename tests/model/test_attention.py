"""Kernels equal plain attention: packed rows, shared key heads."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dipaco.model.attention import attend_causally, attend_fused
from dipaco.model.config import MeshConfig
from dipaco.model.sharding import batch_sharding, make_mesh
from dipaco.model.splash import attend_on_tpu


def inputs(kv_heads, batch=3, length=140, size=8):
    rng = np.random.default_rng(0)
    heads = 4, kv_heads, kv_heads
    q, k, v = (rng.standard_normal((batch, length, n, size), np.float32) for n in heads)
    return (q, k, v), *seen(_segments(rng, batch, length))


def _segments(rng, batch, length):
    return np.cumsum(rng.random((batch, length)) < 0.1, axis=1)


def seen(segments):
    """The mask of packed rows, and the causal one."""
    length = segments.shape[1]
    causal = np.tril(np.ones((length, length), bool))[None]
    return causal & (segments[:, :, None] == segments[:, None, :]), causal


def test_the_fused_kernel_has_another_scale_in_every_layer_and_the_same_bits(monkeypatch):
    """XLA loses one of two calls that are alike, where equal bits are asked for. 99 layers: far
    deeper than any model of today, and no power leaves the range of float32.
    """
    (q, k, v), packed, _ = inputs(2, length=24)
    scales, kernel = set(), jax.nn.dot_product_attention

    def recorded(*arguments, scale, **options):
        scales.add(scale)
        return kernel(*arguments, scale=scale, **options)

    monkeypatch.setattr(jax.nn, "dot_product_attention", recorded)

    def of(layer):
        def total(q, k, v):
            y = attend_fused(q, k, v, packed, "bfloat16", layer=layer, implementation="xla")
            return jnp.sum(jnp.sin(y)), y

        return jax.tree.leaves(jax.jit(jax.value_and_grad(total, (0, 1, 2), has_aux=True))(q, k, v))

    first = of(0)
    for layer in (11, 98):
        for got, expected in zip(of(layer), first, strict=True):
            np.testing.assert_array_equal(got, expected)
    scales.clear()
    for layer in range(99):
        fused = functools.partial(attend_fused, layer=layer, implementation="xla")
        jax.eval_shape(lambda *qkv, fused=fused: fused(*qkv, packed, "bfloat16"), q, k, v)
    assert len(scales) == 99


@pytest.mark.parametrize(("kv_heads", "is_packed"), [(4, True), (2, True), (1, False)])
def test_the_fused_kernel_gives_values_and_gradients_of_plain_attention(kv_heads, is_packed):
    """By the XLA form of the same call: cuDNN's runs on its own devices only (`bench_gpu.py`)."""
    (q, k, v), packed, causal = inputs(kv_heads)
    allowed = packed if is_packed else causal
    wanted = np.random.default_rng(1).standard_normal((*q.shape[:2], 32), np.float32)

    def plain(q, k, v):
        y = attend_causally(q, k.swapaxes(1, 2), v.swapaxes(1, 2), allowed, "float32")
        return jnp.sum(y * wanted), y

    def fused(q, k, v):
        y = attend_fused(q, k, v, allowed, "float32", implementation="xla")
        return jnp.sum(y * wanted), y

    for got, expected in zip(
        *(
            jax.tree.leaves(jax.jit(jax.value_and_grad(form, (0, 1, 2), has_aux=True))(q, k, v))
            for form in (fused, plain)
        ),
        strict=True,
    ):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("kv_heads", "size", "length", "is_packed"),
    [(4, 64, 256, True), (2, 128, 140, True), (1, 64, 130, False)],
)
def test_the_kernel_of_tpus_gives_values_and_gradients_of_plain_attention(
    kv_heads, size, length, is_packed
):
    """Interpreted on a CPU. Lengths that are no multiple of its blocks are filled up."""
    (q, k, v), _, _ = inputs(kv_heads, 2, length, size)
    segments = _segments(np.random.default_rng(2), 2, length)
    wanted = np.random.default_rng(1).standard_normal((2, length, 4 * size), np.float32)
    allowed = seen(segments)[0 if is_packed else 1]

    def plain(q, k, v):
        y = attend_causally(q, k.swapaxes(1, 2), v.swapaxes(1, 2), allowed, "float32")
        return jnp.sum(y * wanted), y

    def splash(q, k, v, sharding=None):
        ids = jnp.asarray(segments, jnp.int32) if is_packed else None
        y = attend_on_tpu(q, k, v, ids, sharding, is_interpreted=True)
        return jnp.sum(y * wanted), y

    mesh = batch_sharding(make_mesh(MeshConfig(data=2, tensor=2)))
    divided = functools.partial(splash, sharding=mesh)
    expected, alone, on_mesh = (
        jax.tree.leaves(jax.jit(jax.value_and_grad(form, (0, 1, 2), has_aux=True))(q, k, v))
        for form in (plain, splash, divided)
    )
    for got in (alone, on_mesh):
        for one, other in zip(got, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
