"""Every value once in `turns` phases, in two bits: each phase sends another share of the values.

All paths send the same values in the same phase. So a value's mean is over all its paths, and the
places need not be sent. With `sparse2` the largest values of two paths mostly lie apart, and a mean
is over one path and zeros. Values that are not due stay with the path: it begins a phase from its
modules and what it has not sent yet (`own_parameters` of `compress`), as with the fragments of
Streaming DiLoCo (arXiv 2501.18512). Here a fragment is a stride through every leaf. In the last
phase, and in the one before documents are routed again, all values are sent: only then do modules
hold what their paths have learned.

A block of 512 values has two magnitudes, the means of its larger and of its smaller ones, of a byte
each (Lloyd's quantiser of two levels, as in `sparse2`). A value is its sign and one bit for the
magnitude: 2.03 bits, and with nine turns 0.226 a phase. Of the vocabulary, the same places of every
token are sent, so that it does not matter which tokens a path has.

Axes: B blocks of L values, S magnitudes of each.
"""

import math
from collections.abc import Iterator

import numpy as np

from dipaco import trees
from dipaco.model.config import VOCABULARY_AXIS
from dipaco.outer.codecs.contract import Codec, Tree
from dipaco.outer.codecs.packing import (
    has_clean_end,
    largest_of,
    magnitudes_of,
    num_bytes,
    pack,
    unpack,
)
from dipaco.outer.codecs.sealed import HEADER_BITS, LARGEST, StreamReader, seal, unseal
from dipaco.outer.codecs.sparse2 import two_means
from dipaco.outer.errors import BadEncoding

NAME = "turns2"
LEVELS, SCALES = "levels", "scales"
BLOCK = 512
_CHUNK = 2048  # blocks that are looked at together: 4 MB
_UNIT = 2.0**32  # magnitudes are summed as whole numbers, which have no order


def turns2(turns: int, turn: int) -> Codec:
    """The codec of one phase.

    Args:
      turns: phases in which every value is sent once. 1 = all are sent.
      turn: the share that this phase sends, 0 to turns - 1.
    """
    return Codec(
        NAME,
        lambda gradient: _encode(gradient, turns, turn),
        lambda message, like: _decode(message, like, turns, turn),
        lambda name, shape: 8 * sum(_sizes(name, shape, turns, turn).values()) + HEADER_BITS,
        keeps_own=True,
    )


def _encode(gradient: Tree, turns: int, turn: int) -> Tree:
    largest: list[np.float32] = []
    streams: dict[str, list[np.ndarray]] = {LEVELS: [], SCALES: []}
    for name, leaf in trees.flatten(gradient):
        values = np.ascontiguousarray(_due(name, np.asarray(leaf, np.float32), turns, turn))
        flat = values.reshape(-1)
        largest.append(most := largest_of(flat))
        levels, scales = [], []
        for blocks_BL in _blocks(flat):
            share_BL = np.abs(blocks_BL).astype(np.float64) / (float(most) or 1.0)
            is_large_BL, codes_BS = two_means(np.rint(share_BL * _UNIT).astype(np.int64))
            signs_BL = (blocks_BL < 0).astype(np.uint8)
            levels.append((signs_BL | is_large_BL.astype(np.uint8) << 1).reshape(-1))
            scales.append(codes_BS.reshape(-1))
        streams[LEVELS].append(pack(np.concatenate([np.empty(0, np.uint8), *levels]), 2))
        streams[SCALES] += scales
    return seal(NAME, gradient, largest, streams)


def _decode(message: Tree, like: Tree, turns: int, turn: int) -> Tree:
    leaves = list(trees.flatten(like))
    sizes = [_sizes(name, leaf.shape, turns, turn) for name, leaf in leaves]
    totals = {stream: sum(size[stream] for size in sizes) for stream in (LEVELS, SCALES)}
    streams = unseal(NAME, message, like, totals)
    reader, decoded = StreamReader(streams), {}
    for (name, leaf), size, most in zip(leaves, sizes, streams[LARGEST], strict=True):
        dense = np.zeros(leaf.shape, np.float32)
        due = _due(name, dense, turns, turn)
        packed = reader.take(LEVELS, size[LEVELS])
        codes_BS = reader.take(SCALES, size[SCALES]).reshape(-1, 2)
        if (np.diff(codes_BS.astype(np.int16), axis=1) < 0).any():
            raise BadEncoding(problem=f"the larger magnitude of a block of `{name}` is the smaller")
        if not has_clean_end(packed, due.size, 2):
            raise BadEncoding(problem=f"`{name}` is followed by bits that no value has")
        levels = unpack(packed, due.size, 2)
        magnitudes_BS = magnitudes_of(codes_BS, most)
        block = np.arange(due.size) // BLOCK
        values = magnitudes_BS[block, 1 - (levels >> 1)]
        due[...] = np.where(levels & 1, -values, values).reshape(due.shape)
        decoded[name] = dense
    return trees.unflatten(decoded)


def _due(name: str, leaf: np.ndarray, turns: int, turn: int) -> np.ndarray:
    """A view of the values that a phase sends. Every token of the vocabulary has the same ones."""
    axis = VOCABULARY_AXIS.get(name)
    if axis is None:
        return leaf.reshape(-1)[turn::turns]
    by_token = np.moveaxis(leaf, axis, 0)
    assert by_token.ndim == 2, "a table or a kernel"
    return by_token[:, turn::turns]


def _blocks(flat: np.ndarray) -> Iterator[np.ndarray]:
    """[B, L]: whole blocks, a chunk at a time, and then a shorter one."""
    whole = len(flat) // BLOCK * BLOCK
    for start in range(0, whole, _CHUNK * BLOCK):
        yield flat[start : min(start + _CHUNK * BLOCK, whole)].reshape(-1, BLOCK)
    if whole < len(flat):
        yield flat[None, whole:]


def _sizes(name: str, shape: tuple[int, ...], turns: int, turn: int) -> dict[str, int]:
    """Bytes of a leaf in each stream."""
    axis, size = VOCABULARY_AXIS.get(name), math.prod(shape)
    rows = 1 if axis is None else shape[axis]
    width = size // rows if rows else 0
    count = rows * len(range(turn, width, turns))
    return {LEVELS: num_bytes(count, 2), SCALES: 2 * -(-count // BLOCK)}
