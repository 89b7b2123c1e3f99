"""XLA's flag that has a GPU repeat its bits, as the CPU does. Pure Python: no JAX."""

import os
from collections.abc import Mapping

EQUAL_BITS = "--xla_gpu_deterministic_ops"
_VALUES = {"": True, "true": True, "1": True, "false": False, "0": False}


def equal_bits_asked(environment: Mapping[str, str] = os.environ) -> bool | None:
    """What `XLA_FLAGS` says of it, at the last mention; None = nothing."""
    words = (word.partition("=") for word in environment.get("XLA_FLAGS", "").split())
    said = [_VALUES.get(value.lower()) for name, _, value in words if name == EQUAL_BITS]
    return said[-1] if said else None
