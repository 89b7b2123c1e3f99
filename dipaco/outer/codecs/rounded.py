"""Codecs that send every value: as it is in float32, in 16 bits, or in 8.

`bfloat16` keeps the exponent of float32. `int8` has a float32 scale for each block of values
(`outer/quantise.py`).
"""

import math

import jax.numpy as jnp
import numpy as np

from dipaco import trees
from dipaco.outer.codecs.contract import Codec, Tree, tagged, untagged
from dipaco.outer.errors import BadEncoding
from dipaco.outer.quantise import dequantise, num_blocks, quantise

VALUES, SCALES = "values", "scales"

PLAIN = Codec(
    "none",
    lambda gradient: gradient,
    lambda message, like: message,
    lambda shape: 32 * math.prod(shape),
    is_lossy=False,
)


def _encode_bfloat16(gradient: Tree) -> Tree:
    leaves = {name: np.asarray(leaf).astype(jnp.bfloat16) for name, leaf in trees.flatten(gradient)}
    return tagged("bfloat16", leaves)


def _decode_bfloat16(message: Tree, like: Tree) -> Tree:
    leaves = dict(trees.flatten(untagged("bfloat16", message)))
    for name, leaf in leaves.items():
        if leaf.dtype != jnp.bfloat16:
            raise BadEncoding(problem=f"`{name}` is {leaf.dtype}, expected bfloat16")
    return trees.unflatten({name: leaf.astype(np.float32) for name, leaf in leaves.items()})


BFLOAT16 = Codec(
    "bfloat16", _encode_bfloat16, _decode_bfloat16, lambda shape: 16 * math.prod(shape)
)


def _encode_int8(gradient: Tree) -> Tree:
    leaves = {}
    for name, leaf in trees.flatten(gradient):
        leaves[f"{name}.{VALUES}"], leaves[f"{name}.{SCALES}"] = quantise(np.asarray(leaf))
    return tagged("int8", leaves)


def _decode_int8(message: Tree, like: Tree) -> Tree:
    found = dict(trees.flatten(untagged("int8", message)))
    names = sorted({name.rpartition(trees.SEPARATOR)[0] for name in found})
    leaves = {}
    for name in names:
        values, scales = found.pop(f"{name}.{VALUES}", None), found.pop(f"{name}.{SCALES}", None)
        if values is None or scales is None:
            raise BadEncoding(problem=f"`{name}` has no {VALUES if values is None else SCALES}")
        if values.dtype != np.int8 or scales.dtype != np.float32:
            types = f"{values.dtype} with scales of {scales.dtype}"
            raise BadEncoding(problem=f"`{name}` is {types}, expected int8 with scales of float32")
        if scales.shape != (num_blocks(values.size),):
            expected = f"[{num_blocks(values.size)}]"
            raise BadEncoding(problem=f"`{name}` has scales {list(scales.shape)}, not {expected}")
        if not (np.isfinite(scales).all() and (scales >= 0).all()):
            raise BadEncoding(problem=f"a scale of `{name}` is negative, infinite or not a number")
        leaves[name] = dequantise(values, scales)
    if found:
        raise BadEncoding(problem=f"`{min(found)}` was not expected")
    return trees.unflatten(leaves)


def _int8_bits(shape: tuple[int, ...]) -> int:
    size = math.prod(shape)
    return 8 * size + 32 * num_blocks(size)


INT8 = Codec("int8", _encode_int8, _decode_int8, _int8_bits)
