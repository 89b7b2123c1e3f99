"""Makes a GPU repeat its bits. Recovery and the equality of runs depend on it.

By default XLA times several kernels for a product and takes the fastest, which may differ between
processes. It also adds some sums, such as the gradient of an embedding, in the order in which
threads end. On an H100 no module of two runs of one program was the same. With the flag all were
the same: in one process, and in four that shared the GPU and were killed (`tools/same_bits.py`).
"""

import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from dipaco.launch.devices import visible_devices

EQUAL_BITS = "--xla_gpu_deterministic_ops"
_VALUES = {"": True, "true": True, "1": True, "false": False, "0": False}


def equal_bits_asked(environment: Mapping[str, str] = os.environ) -> bool | None:
    """The value of the flag's last mention in `XLA_FLAGS`. None = it is not mentioned."""
    words = (word.partition("=") for word in environment.get("XLA_FLAGS", "").split())
    said = [_VALUES.get(value.lower()) for name, _, value in words if name == EQUAL_BITS]
    return said[-1] if said else None


def ask_for_equal_bits(
    environment: MutableMapping[str, str] = os.environ, dev: Path = Path("/dev")
) -> None:
    """Sets XLA's flag if this process will compute on a GPU, unless `XLA_FLAGS` mentions it:
    `=false` there keeps the faster kernels. Must be called before JAX looks for devices.
    """
    if visible_devices(environment, dev).kind == "gpu" and equal_bits_asked(environment) is None:
        environment["XLA_FLAGS"] = f"{environment.get('XLA_FLAGS', '')} {EQUAL_BITS}=true".strip()
