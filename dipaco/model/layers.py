"""The pieces of a block: the dense product, RMSNorm, rotary positions and the gated feed-forward.

Axis letters are in this room's `__init__`. One surprise: the gradient of `dense` is written by
hand, because XLA's takes up to half of the time of a training step on CPU.
"""

import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax

from dipaco.model.spec import ParamSpec


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def dense(
    x: jax.Array, kernel_NM: jax.Array, compute_dtype: str, result_dtype: str = "float32"
) -> jax.Array:
    """x @ kernel over the last axis of x [..., N], in float32 -> [..., M].

    Inputs are cast to `compute_dtype`, and sums are float32. The result, and the gradient of x, are
    rounded to `result_dtype` on their way through memory, where the model keeps them until the
    backward pass (see `kernels.result_dtype`). The gradient of the kernel is not rounded. If a mesh
    divides the summed axis, each device rounds its part, and parts are added in that type.
    """
    return _dense_forward(x, kernel_NM, compute_dtype, result_dtype)[0]


def _dense_forward(x, kernel_NM, compute_dtype, result_dtype):
    x, kernel_NM = x.astype(compute_dtype), kernel_NM.astype(compute_dtype)
    return _contract(x, kernel_NM, (x.ndim - 1,), (0,), result_dtype), (x, kernel_NM)


def _dense_backward(compute_dtype, result_dtype, saved, gradient):
    x, kernel_NM = saved
    # Without the barrier XLA:CPU fuses the incoming elementwise gradient (of SiLU, cross-entropy)
    # into a *transposed copy* for the kernel's product, at many times the cost of the product.
    gradient = lax.optimization_barrier(gradient.astype(compute_dtype))
    leading = tuple(range(x.ndim - 1))
    gradient_x = _contract(gradient, kernel_NM, (x.ndim - 1,), (1,), result_dtype)
    # XLA:CPU copies the left side of this product into columns, so the narrower side is put there:
    # for the feed-forward's `down`, 1024 to 256, the product takes three quarters of the time.
    if x.shape[-1] > gradient.shape[-1]:
        gradient_kernel_MN = _contract(gradient, x, leading, leading)
        # Without the barrier XLA folds the transpose back into the product.
        gradient_kernel_NM = lax.optimization_barrier(gradient_kernel_MN).T
    else:
        gradient_kernel_NM = _contract(x, gradient, leading, leading)
    return gradient_x, gradient_kernel_NM


def _contract(a, b, axes_a, axes_b, result_dtype="float32"):
    """The product of a and b summed over the given axes, without transposed copies. Sums are
    float32 and are rounded to `result_dtype`.
    """
    dimensions = ((axes_a, axes_b), ((), ()))
    product = lax.dot_general(a, b, dimensions, preferred_element_type=jnp.dtype(result_dtype))
    return product.astype(jnp.float32)


dense.defvjp(_dense_forward, _dense_backward)


def declare(module: nn.Module, specs: Mapping[str, ParamSpec]) -> dict[str, jax.Array]:
    """The parameters of a Flax module, as `spec.describe` describes them."""
    return {
        name: module.param(name, spec.init, spec.shape, spec.dtype) for name, spec in specs.items()
    }


def rms_norm(x: jax.Array, scale: jax.Array, epsilon: float) -> jax.Array:
    """x / sqrt(mean(x^2) + epsilon) * scale over the last axis, in float32 (arXiv 1910.07467)."""
    mean_square = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
    return x * lax.rsqrt(mean_square + epsilon) * jnp.expand_dims(scale, range(x.ndim - 1))


def rotary_table(positions_BT: jax.Array, head_size: int, theta: float) -> jax.Array:
    """Cosine and sine of the angle of each pair of values at each position -> [2, B, T, K / 2].

    The angle is position / theta^(2i / K), in float32 as in `transformers`: at position 2048
    another precision changes the logits visibly.
    """
    exponents = jnp.arange(0, head_size, 2, dtype=jnp.float32) / head_size
    frequencies = 1.0 / jnp.power(jnp.float32(theta), exponents)
    angles = positions_BT[:, :, None].astype(jnp.float32) * frequencies[None, None, :]
    # Without the barrier XLA fuses the sines into every use, and each head of each layer computes
    # them again, forward and backward: 7 % of a training step on CPU.
    return lax.optimization_barrier(jnp.stack([jnp.cos(angles), jnp.sin(angles)]))


def rotate(x_BTHK: jax.Array, rotary: jax.Array) -> jax.Array:
    """Rotates each pair (i, i + K/2) by its angle in the `rotary_table` (arXiv 2104.09864).

    Half-split, as Llama in `transformers`. The paper pairs neighbours.
    """
    cosine, sine = rotary[:, :, :, None, :]
    first, second = jnp.split(x_BTHK, 2, axis=-1)
    rotated = (first * cosine - second * sine, second * cosine + first * sine)
    return jnp.concatenate(rotated, axis=-1)


class FeedForward(nn.Module):
    """Norm, then down(silu(gate x) * up x): SwiGLU (arXiv 2002.05202)."""

    specs: Mapping[str, ParamSpec]
    norm_epsilon: float
    compute_dtype: str
    result_dtype: str

    @nn.compact
    def __call__(self, x_BTD: jax.Array) -> jax.Array:
        params, dtypes = declare(self, self.specs), (self.compute_dtype, self.result_dtype)
        x_BTD = rms_norm(x_BTD, params["norm"], self.norm_epsilon)
        gate_BTF = dense(x_BTD, params["gate"], *dtypes)
        up_BTF = dense(x_BTD, params["up"], *dtypes)
        return dense(nn.silu(gate_BTF) * up_BTF, params["down"], *dtypes)
