"""Columns of numbers as text: base64 of little-endian arrays, which a page reads without parsing
each number.
"""

import base64
from typing import Any

import numpy as np

INTEGERS = {
    "u1": (0, 2**8 - 1),
    "u2": (0, 2**16 - 1),
    "i2": (-(2**15), 2**15 - 1),
    "i4": (-(2**31), 2**31 - 1),
    "u4": (0, 2**32 - 1),
}
TYPES = {"f4", *INTEGERS}


def packed(values: Any, kind: str) -> dict[str, Any]:
    """A column or a matrix: {"type", "shape", "data"}.

    Args:
      values: numbers; NaN = none, for floats.
      kind: one of `TYPES`, by NumPy's names.
    """
    assert kind in TYPES, kind
    array = np.ascontiguousarray(values, dtype=f"<{kind}")
    data = base64.b64encode(array.tobytes()).decode()
    return {"type": kind, "shape": list(array.shape), "data": data}


def packed_integers(values: Any) -> dict[str, Any]:
    """A column of whole numbers, in the smallest type that holds them."""
    array = np.asarray(values)
    least, most = (int(array.min()), int(array.max())) if array.size else (0, 0)
    fitting = (
        kind for kind in INTEGERS if least >= INTEGERS[kind][0] and most <= INTEGERS[kind][1]
    )
    return packed(array, next(fitting))


def unpacked(column: dict[str, Any]) -> np.ndarray:
    """The inverse of `packed`."""
    data = base64.b64decode(column["data"])
    return np.frombuffer(data, dtype=f"<{column['type']}").reshape(column["shape"])
