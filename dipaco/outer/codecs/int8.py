"""Every value in 8 bits, blocks of values with a float32 scale each (`outer/quantise.py`)."""

import math

import numpy as np

from dipaco import trees
from dipaco.outer.codecs.contract import Codec, Tree, tagged, untagged
from dipaco.outer.errors import BadEncoding
from dipaco.outer.quantise import dequantise, num_blocks, quantise

NAME = "int8"
VALUES, SCALES = "values", "scales"


def encode(gradient: Tree) -> Tree:
    leaves = {}
    for name, leaf in trees.flatten(gradient):
        leaves[f"{name}.{VALUES}"], leaves[f"{name}.{SCALES}"] = quantise(np.asarray(leaf))
    return tagged(NAME, leaves)


def decode(message: Tree, like: Tree) -> Tree:
    found = dict(trees.flatten(untagged(NAME, message)))
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


def _leaf_bits(name: str, shape: tuple[int, ...]) -> int:
    size = math.prod(shape)
    return 8 * size + 32 * num_blocks(size)


CODEC = Codec(NAME, encode, decode, _leaf_bits)
