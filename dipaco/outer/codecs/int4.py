"""Every value in 4 bits, E3M0: its sign and one of seven powers of two, or zero.

A block of 256 values has a scale of one byte, the magnitude of its largest value. The powers below
it are 1, 1/2, ... 1/64, and a value becomes the nearest. Source: Streaming DiLoCo (arXiv
2501.18512, section 3.3), which finds no loss from it. The scale is ours.
"""

import math

import numpy as np

from dipaco import trees
from dipaco.outer.codecs.contract import Codec, Tree
from dipaco.outer.codecs.packing import codes_of, largest_of, magnitudes_of
from dipaco.outer.codecs.sealed import HEADER_BITS, LARGEST, StreamReader, seal, unseal
from dipaco.outer.quantise import in_blocks, num_blocks

NAME = "int4"
VALUES, SCALES = "values", "scales"
_MAGNITUDES = [0, *(2.0**e for e in range(-6, 1))]  # indexed by the lower three bits
_VALUES = np.array([*_MAGNITUDES, *(-each for each in _MAGNITUDES)], np.float32)
_SIGN = np.uint8(8)
_CHUNK = 1 << 12  # blocks that are looked at together: 4 MB


def encode(gradient: Tree) -> Tree:
    largest, values, scales = [], [], []
    for _, leaf in trees.flatten(gradient):
        most = largest_of(leaf)
        blocks = in_blocks(np.asarray(leaf, np.float32))
        codes = codes_of(np.abs(blocks).max(axis=1).astype(np.float64) / (float(most) or 1.0))
        scales_B = magnitudes_of(codes, most)
        numbers = np.empty(blocks.shape, np.uint8)
        for chunk in (slice(i, i + _CHUNK) for i in range(0, len(blocks), _CHUNK)):
            numbers[chunk] = _numbers(blocks[chunk], scales_B[chunk])
        flat = numbers.reshape(-1)[: _even(leaf.size)]
        largest.append(most)
        values.append(flat[0::2] | (flat[1::2] << 4))
        scales.append(codes)
    return seal(NAME, gradient, largest, {VALUES: values, SCALES: scales})


def decode(message: Tree, like: Tree) -> Tree:
    sizes = [math.prod(leaf.shape) for _, leaf in trees.flatten(like)]
    streams = {
        VALUES: sum(_even(size) // 2 for size in sizes),
        SCALES: sum(num_blocks(size) for size in sizes),
    }
    leaves = unseal(NAME, message, like, streams)
    reader, decoded = StreamReader(leaves), {}
    for (name, leaf), most, size in zip(trees.flatten(like), leaves[LARGEST], sizes, strict=True):
        scales_B = magnitudes_of(reader.take(SCALES, num_blocks(size)), most)
        packed = reader.take(VALUES, _even(size) // 2)
        values = np.empty((len(packed), 2), np.float32)
        values[:, 0], values[:, 1] = _VALUES[packed & 15], _VALUES[packed >> 4]
        products = in_blocks(values.reshape(-1)[:size]) * scales_B[:, None]
        decoded[name] = products.reshape(-1)[:size].reshape(leaf.shape)
    return trees.unflatten(decoded)


def _numbers(blocks: np.ndarray, scales_B: np.ndarray) -> np.ndarray:
    """uint8 of the blocks' shape: the nearest power, and the sign."""
    shares = np.abs(blocks) / np.where(scales_B > 0, scales_B, np.float32(1))[:, None]
    # A float32 is its exponent and then 23 bits. Half of their range more rounds up from 1.5 on.
    exponents = (shares.view(np.int32) + (1 << 22)) >> 23
    powers = np.clip(exponents - (127 - 7), 0, 7).astype(np.uint8)
    powers[(powers == 0) & (shares >= 2.0**-7)] = 1  # the lowest lies between 0 and its double
    powers[scales_B == 0] = 0
    powers[(blocks < 0) & (powers > 0)] |= _SIGN
    return powers


def _even(size: int) -> int:
    return size + size % 2


def _leaf_bits(shape: tuple[int, ...]) -> int:
    size = math.prod(shape)
    return 4 * _even(size) + 8 * num_blocks(size) + HEADER_BITS


CODEC = Codec(NAME, encode, decode, _leaf_bits)
