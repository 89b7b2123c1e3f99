"""Every value in 2 bits: its sign, and which of its block's two magnitudes it has.

The magnitudes of a block of 128 values are the means of its larger and of its smaller ones, parted
where the squared error is least (Lloyd's quantiser of two levels, which sorting finds exactly).
They take a byte each (`packing`), so a value takes 2.13 bits. What a message cannot hold is in the
path's next contribution, as with every codec that rounds. MuLoCo (arXiv 2505.23725) finds no loss
from two bits with such error feedback where paths train with Muon.

Axes: B blocks of L values, S magnitudes of each.
"""

import math
from collections.abc import Iterator

import numpy as np

from dipaco import trees
from dipaco.outer.codecs.contract import Codec, Tree
from dipaco.outer.codecs.packing import (
    codes_of,
    has_clean_end,
    largest_of,
    magnitudes_of,
    num_bytes,
    pack,
    unpack,
)
from dipaco.outer.codecs.sealed import HEADER_BITS, LARGEST, StreamReader, seal, unseal
from dipaco.outer.errors import BadEncoding

NAME = "int2"
LEVELS, SCALES = "levels", "scales"
BLOCK = 128  # blocks of 512 have a fifth more error where rows of tokens differ in size
_CHUNK = 8192  # blocks that are looked at together: 4 MB
_UNIT = 2.0**32  # magnitudes are summed as whole numbers, which have no order


def encode(gradient: Tree) -> Tree:
    largest: list[np.float32] = []
    streams: dict[str, list[np.ndarray]] = {LEVELS: [], SCALES: []}
    for _, leaf in trees.flatten(gradient):
        flat = np.asarray(leaf, np.float32).reshape(-1)
        largest.append(most := largest_of(flat))
        levels = [np.empty(0, np.uint8)]
        for blocks_BL in _blocks(flat):
            share_BL = np.abs(blocks_BL).astype(np.float64) / (float(most) or 1.0)
            is_large_BL, codes_BS = two_means(np.rint(share_BL * _UNIT).astype(np.int64))
            signs_BL = (blocks_BL < 0).astype(np.uint8)
            levels.append((signs_BL | is_large_BL.astype(np.uint8) << 1).reshape(-1))
            streams[SCALES].append(codes_BS.reshape(-1))
        streams[LEVELS].append(pack(np.concatenate(levels), 2))
    return seal(NAME, gradient, largest, streams)


def decode(message: Tree, like: Tree) -> Tree:
    leaves = list(trees.flatten(like))
    sizes = [_sizes(leaf.shape) for _, leaf in leaves]
    totals = {stream: sum(size[stream] for size in sizes) for stream in (LEVELS, SCALES)}
    streams = unseal(NAME, message, like, totals)
    reader, decoded = StreamReader(streams), {}
    for (name, leaf), size, most in zip(leaves, sizes, streams[LARGEST], strict=True):
        count = math.prod(leaf.shape)
        packed = reader.take(LEVELS, size[LEVELS])
        codes_BS = reader.take(SCALES, size[SCALES]).reshape(-1, 2)
        if (codes_BS[:, 0] > codes_BS[:, 1]).any():
            raise BadEncoding(problem=f"the larger magnitude of a block of `{name}` is the smaller")
        if not has_clean_end(packed, count, 2):
            raise BadEncoding(problem=f"`{name}` is followed by bits that no value has")
        levels = unpack(packed, count, 2)
        block = np.arange(count) // BLOCK
        values = magnitudes_of(codes_BS, most)[block, 1 - (levels >> 1)]
        decoded[name] = np.where(levels & 1, -values, values).reshape(leaf.shape)
    return trees.unflatten(decoded)


def two_means(units_BL: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The two magnitudes of each block.

    Returns:
      bool [B, L], true for values of the larger magnitude. uint8 [B, 2], the codes of the larger
      and the smaller magnitude.

    Args:
      units_BL: int64, magnitudes as multiples of 2 ** -32 of the largest of the leaf.
    """
    count = units_BL.shape[1]
    order_BL = np.argsort(-units_BL, axis=1, kind="stable")
    falling_BL = np.take_along_axis(units_BL, order_BL, 1)
    sums_BL = np.cumsum(falling_BL, axis=1).astype(np.float64)  # exact below 2 ** 53
    rest_BL = sums_BL[:, -1:] - sums_BL
    taken_L = np.arange(1, count + 1, dtype=np.float64)
    left_L = np.maximum(count - taken_L, 1)  # the last has no rest
    # The squared error is least where the two means explain most.
    last_B1 = np.argmax(sums_BL**2 / taken_L + rest_BL**2 / left_L, axis=1)[:, None]
    means = (sums_BL / taken_L, rest_BL / left_L)
    means_BS = np.concatenate([np.take_along_axis(mean, last_B1, 1) for mean in means], axis=1)
    is_large_BL = np.zeros(units_BL.shape, bool)
    np.put_along_axis(is_large_BL, order_BL, np.arange(count) <= last_B1, 1)
    return is_large_BL, codes_of(means_BS / _UNIT)


def _blocks(flat: np.ndarray) -> Iterator[np.ndarray]:
    """[B, L]: whole blocks, a chunk at a time, and then a shorter one."""
    whole = len(flat) // BLOCK * BLOCK
    for start in range(0, whole, _CHUNK * BLOCK):
        yield flat[start : min(start + _CHUNK * BLOCK, whole)].reshape(-1, BLOCK)
    if whole < len(flat):
        yield flat[None, whole:]


def _sizes(shape: tuple[int, ...]) -> dict[str, int]:
    """Bytes of a leaf in each stream."""
    size = math.prod(shape)
    return {LEVELS: num_bytes(size, 2), SCALES: 2 * -(-size // BLOCK)}


def _leaf_bits(shape: tuple[int, ...]) -> int:
    return 8 * sum(_sizes(shape).values()) + HEADER_BITS


CODEC = Codec(NAME, encode, decode, _leaf_bits)
