"""The choice between forms of a computation for the devices of this machine, or for others that
programs are compiled for here.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Generator, Sequence
from contextvars import ContextVar

import jax

from dipaco.model.config import AttentionKernel, ModelConfig
from dipaco.model.errors import KernelUnavailable
from dipaco.processors import is_from_amd

COMMON_HEAD = 128  # values in the largest head that cuDNN's attention takes on all GPUs it runs on
# Name of what a block computed again keeps of a kernel's attention: values and results.
KEPT = "attention"
# Bytes on the chip in which XLA keeps what fits. Other TPUs have half of it or less.
ON_CHIP = {"TPU v5 lite": 128 << 20, "TPU v6 lite": 128 << 20}
AMPERE, HOPPER = 8.0, 9.0  # the first compute capability of each

_compiled_for: ContextVar[Sequence[jax.Device] | None] = ContextVar("compiled_for", default=None)


@contextlib.contextmanager
def compiling_for(devices: Sequence[jax.Device]) -> Generator[None]:
    """Meshes and forms are for these devices inside, which may be descriptions of some that this
    machine does not have.
    """
    token = _compiled_for.set(devices)
    try:
        yield
    finally:
        _compiled_for.reset(token)


def target_devices() -> Sequence[jax.Device]:
    """The devices that programs are compiled for."""
    return _compiled_for.get() or jax.devices()


def stays_on_chip(num_bytes: float) -> bool:
    """True if so much leaves half of a chip's own memory for what changes."""
    return 2 * num_bytes <= ON_CHIP.get(target_devices()[0].device_kind, 0)


_has_amd = functools.cache(is_from_amd)


def _platform() -> str:
    return target_devices()[0].platform


def attention_kernel(config: ModelConfig, length: int) -> AttentionKernel:
    """The form of attention for rows of `length` tokens, as configured. For "auto" it is a kernel
    if one runs: splash on a TPU, cuDNN's on a GPU.

    cuDNN's takes 16-bit types, head sizes that are multiples of 8, an even length with a mask, and
    NVIDIA's Ampere or later. Heads above 128, up to 256, need Hopper or later and are not chosen by
    "auto" (jax 0.10, `jax/_src/cudnn/fused_attention_stablehlo.py`).
    """
    if config.attention_kernel != "auto":
        return config.attention_kernel
    device, size = target_devices()[0], config.head_size
    if config.compute_dtype != "bfloat16":
        return "plain"
    if device.platform == "tpu":
        return "splash"
    takes = config.fits_cudnn and size <= COMMON_HEAD and length % 2 == 0
    return "cudnn" if takes and _runs_cudnn(device, size) else "plain"


def check_kernel(config: ModelConfig) -> None:
    """Raises `KernelUnavailable`: the attention kernel that is asked for does not run here."""
    device, kernel = target_devices()[0], config.attention_kernel
    runs = {
        "cudnn": lambda: _runs_cudnn(device, config.head_size),
        "splash": lambda: device.platform == "tpu",
    }
    if kernel in runs and not runs[kernel]():
        raise KernelUnavailable(
            kernel=kernel, device=device.device_kind, head_size=config.head_size
        )


def when_scoring(config: ModelConfig) -> ModelConfig:
    """For what reads text and learns nothing, on any machine and of any length: a kernel that a run
    is trained with need not run here. On several TPUs the form is the plain one, which XLA divides
    among them by itself.
    """
    if config.attention_kernel == "plain":
        return config
    divides = _platform() == "tpu" and len(target_devices()) > 1
    return dataclasses.replace(config, attention_kernel="plain" if divides else "auto")


def _runs_cudnn(device: jax.Device, head_size: int) -> bool:
    least = AMPERE if head_size <= COMMON_HEAD else HOPPER
    return "NVIDIA" in device.device_kind and float(device.compute_capability) >= least


def result_dtype(config: ModelConfig) -> str:
    """The type of a dense product's result in a block, as configured. "auto" is the type of its
    inputs, but float32 on CPU.

    A GPU is kept waiting by its memory: with results of bfloat16 a step of 176 M parameters took
    0.90 of the time on an H100, and 0.80 of the memory. On CPU a product with a bfloat16 result
    runs at a fraction of the speed of one with a float32 result.
    """
    if config.result_dtype != "auto":
        return config.result_dtype
    return "float32" if _platform() == "cpu" else config.compute_dtype


def serving_dtype(config: ModelConfig) -> str:
    """The type of products while serving: as configured, but float32 on CPU.

    There a row of 896 values times a bfloat16 kernel of [896, 32000] takes 80 to 95 ms of CPU time,
    and 6 to 7 ms in float32.
    """
    return "float32" if _platform() == "cpu" else config.compute_dtype


def tokens_are_rows() -> bool:
    """True if products for serving have the tokens as rows, [N, in] times [in, out]. False: as
    columns, [out, in] times [in, N].

    XLA:CPU packs the right-hand side of a product. On Intel's processors it is better to pack the
    tokens (columns): two thirds to three quarters of the time from 4 to 32 of them (jax 0.10,
    float32, a kernel of 1 MB). On AMD's (EPYC, Zen 5) rows read a kernel faster that no cache
    holds: 64 rows on 64 paths decode in 0.73 of the time. Rows of one path take 0.8 of it for 2
    tokens and 0.9 to 1.0 for more.
    """
    return _platform() == "cpu" and _has_amd()
