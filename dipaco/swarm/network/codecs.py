"""Codecs of gradients on the wire: whole float32, or eight bits.

Sums are never taken of coded values: a receiver decodes to float32 and adds there.

Eight bits are linear in blocks of 256 values, each with its own largest magnitude, so that one
large value costs the precision of its neighbours only. The blocks are those of `outer.quantise`.
The arithmetic is not: this multiplies by 127 / largest and that divides by largest / 127, which
differs in the last bit, and all peers of a group must decode the same bits.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dipaco.outer.quantise import BLOCK, in_blocks, num_blocks
from dipaco.swarm.errors import BadMessage


class WireCodec(NamedTuple):
    """float32 [n] -> bytes, and back."""

    name: str
    encode: Callable[[np.ndarray], bytes]
    decode: Callable[[bytes, int], np.ndarray]
    num_bytes: Callable[[int], int]  # size of n coded values
    # Largest error of each value from coding: (a message, its n values) -> float64 [n].
    rounding: Callable[[bytes, int], np.ndarray] = lambda content, n: np.zeros(n)


def codec_of(name: str) -> WireCodec:
    """The codec with that name. Raises `BadMessage` for a name that is no codec."""
    if name not in CODECS:
        raise BadMessage(problem=f"it has the codec `{name}`; known are {', '.join(CODECS)}")
    return CODECS[name]


def _encode_plain(values: np.ndarray) -> bytes:
    return np.ascontiguousarray(values, "<f4").tobytes()


def _decode_plain(content: bytes, num_values: int) -> np.ndarray:
    return _array(content, "<f4", num_values).astype(np.float32, copy=False)


def _encode_bytes(values: np.ndarray) -> bytes:
    blocks = in_blocks(values)
    scale = np.max(np.abs(blocks), axis=1, initial=0.0).astype("<f4")
    steps = np.rint(blocks * (127.0 / np.where(scale > 0, scale, 1.0))[:, None]).astype(np.int8)
    return scale.tobytes() + steps.reshape(-1)[: len(values)].tobytes()


def _decode_bytes(content: bytes, num_values: int) -> np.ndarray:
    num_scales = num_blocks(num_values)
    scale = _array(content[: 4 * num_scales], "<f4", num_scales)
    steps = _array(content[4 * num_scales :], np.int8, num_values)
    values = in_blocks(steps.astype(np.float32)) * (scale / np.float32(127.0))[:, None]
    return values.reshape(-1)[:num_values].astype(np.float32)


def _byte_rounding(content: bytes, num_values: int) -> np.ndarray:
    """By each block's largest value: a liar's scale may be far above it."""
    largest = np.max(np.abs(in_blocks(_decode_bytes(content, num_values))), axis=1, initial=0.0)
    return np.repeat(largest.astype(np.float64) / 254.0, BLOCK)[:num_values]


def _array(content: bytes, dtype: str | type, count: int) -> np.ndarray:
    expected = count * np.dtype(dtype).itemsize
    if len(content) != expected:
        raise BadMessage(problem=f"it has {len(content)} bytes of values, expected {expected}")
    return np.frombuffer(content, dtype)


CODECS = {
    "none": WireCodec("none", _encode_plain, _decode_plain, lambda n: 4 * n),
    "int8": WireCodec(
        "int8", _encode_bytes, _decode_bytes, lambda n: 4 * num_blocks(n) + n, _byte_rounding
    ),
}
