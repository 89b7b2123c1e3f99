"""The kind of a machine: everything beside the program that the last bits of a result depend on.

Results of one kind are equal bit for bit. Results of two kinds are equal within a tolerance.
`dipaco status` counts the kinds that took part in a run.
"""

import functools
import importlib.metadata
import os
from pathlib import Path

import jax

from dipaco.processors import num_processors, processor_model

PACKAGES = ("jax", "jaxlib", "numpy", "optax", "flax")
VARIABLES = ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "NVIDIA_TF32_OVERRIDE")
# Flags that change no bit, or only the number of devices, which is said apart.
FLAGS_APART = ("--xla_force_host_platform_device_count", "--xla_dump")
NVIDIA_DRIVER = Path("/sys/module/nvidia/version")


def machine() -> str:
    """The bits of a result depend on this: the kind of device and its driver, how many on how many
    hosts, how many CPUs, the packages that compute, and the settings of the compiler.
    """
    devices = jax.devices()
    where = f" on {jax.process_count()} hosts" if jax.process_count() > 1 else ""
    parts = [
        f"{len(devices)} x {_kind(devices[0])}{where}, {num_processors()} CPUs",
        _versions(),
        *_settings(),
    ]
    return ", ".join(parts)


def _kind(device: jax.Device) -> str:
    if device.platform == "cpu":
        return processor_model()
    runtime = " ".join(device.client.platform_version.split())[:80]
    try:
        driver = f", driver {NVIDIA_DRIVER.read_text().strip()}"
    except OSError:
        driver = ""
    return f"{device.device_kind} ({runtime}{driver})"


@functools.cache
def _versions() -> str:
    return ", ".join(f"{package} {importlib.metadata.version(package)}" for package in PACKAGES)


def _settings() -> list[str]:
    """Those that are not the default."""
    settings = []
    for name in VARIABLES:
        words = [
            word for word in os.environ.get(name, "").split() if not word.startswith(FLAGS_APART)
        ]
        if words:
            settings.append(f"{name}={' '.join(words)}")
    precision = getattr(jax.config, "jax_default_matmul_precision")  # noqa: B009 - for the typing
    if precision is not None:
        settings.append(f"matmul precision {precision}")
    return settings
