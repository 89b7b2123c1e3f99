"""Columns of numbers as text: base64 of little-endian arrays, which a page reads without parsing
number by number.
"""

import base64
from typing import Any

import numpy as np

TYPES = {"f4", "i4", "i2", "u4", "u2", "u1"}


def packed(values: Any, kind: str) -> dict[str, Any]:
    """A column or a matrix: {"type", "shape", "data"}.

    Args:
      values: numbers; NaN = none, for floats.
      kind: one of `TYPES`, as NumPy calls them.
    """
    assert kind in TYPES, kind
    array = np.ascontiguousarray(values, dtype=f"<{kind}")
    data = base64.b64encode(array.tobytes()).decode()
    return {"type": kind, "shape": list(array.shape), "data": data}


def unpacked(column: dict[str, Any]) -> np.ndarray:
    """What `packed` was given."""
    data = base64.b64decode(column["data"])
    return np.frombuffer(data, dtype=f"<{column['type']}").reshape(column["shape"])
