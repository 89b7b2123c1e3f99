"""Few values, in two bits each: of every 4,096, the `places` largest.

A block sends where its largest values are (12 bits each, rising), the sign of each, and which of
the block's two magnitudes it has. The two are the means of the larger and of the smaller ones,
parted where the squared error is least (Lloyd's quantiser of two levels, which sorting finds
exactly), and take a byte each (`packing`). A block of one place has one magnitude. With 64
places of 4,096 that is 0.22 bits a value, with 128 0.44.

In a block that several tokens share, the largest values belong to the frequent ones, and a rare
token's would wait for ever. So the embedding and the head are sent in two passes with half of the
places each: first the largest of every 4,096 values, then the largest of each token among the rest
(of two tokens if a token's share is less than a place, below a width of 128 with 64 places).
Contributions of a small run (2x2, width 64, ten phases of 25 steps), replayed through the codec:
with all places in the first pass 51 % of the way of these leaves arrives, and 48 % of the tokens
have nothing sent. With all in the second 29 % arrives. With half in each 42 % arrives, and 13 %
have nothing sent, none with 128 places (58 % arrives).

The rest stays with the path, times `RESIDUAL_DECAY`. The outer step has no momentum then, since the
residual already sends every phase's gradient over many phases.

Source: SparseLoCo (arXiv 2508.15706), Covenant-72B (2603.08163): top k of blocks of 4,096, two
bits, error feedback with decay 0.95, no momentum. The pass by token, the two magnitudes and the
checksum are ours. Of equal magnitudes the first places are sent.

Axes: B blocks of L values, Q places of each, S magnitudes of each.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from dipaco import trees
from dipaco.outer.codecs.blocks import BLOCK, Cuts, by_size, by_token, cut, joined
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

NAME = "sparse2"
# SparseLoCo's. Of 0.5, 0.8, 0.95 and 1 it was the best here: without decay a path sends what it has
# long made up for.
RESIDUAL_DECAY = 0.95
PLACES, LEVELS, SCALES = "places", "levels", "scales"
_CHUNK = 256  # blocks that are looked at together: 4 MB
_UNIT = 2.0**32  # magnitudes are summed as whole numbers, which have no order


def sparse2(places: int) -> Codec:
    """The codec that sends `places` values of every 4,096."""
    return Codec(
        NAME,
        lambda gradient: _encode(gradient, places),
        lambda message, like: _decode(message, like, places),
        lambda name, shape: 8 * sum(map(sum, _sizes(name, shape, places))) + HEADER_BITS,
        residual_decay=RESIDUAL_DECAY,
    )


class Blocks(NamedTuple):
    """The sent values of some blocks of one length."""

    places_BQ: np.ndarray  # int64, rising
    levels_BQ: np.ndarray  # uint8. Bit 0: negative, bit 1: of the larger magnitude
    codes_BS: np.ndarray  # uint8: the larger magnitude and, of more than one place, the smaller


def _passes(name: str, shape: tuple[int, ...], places: int) -> Iterator[tuple[Cuts, int]]:
    """The cuts of a leaf in each pass, and the places of every 4,096 values."""
    half = -(-places // 2)
    tokens = by_token(name, shape, least=-(-BLOCK // half))
    yield by_size(name, shape), places if tokens is None else half
    if tokens is not None:
        yield tokens, half


def _encode(gradient: Tree, places: int) -> Tree:
    largest: list[np.float32] = []
    streams: dict[str, list[np.ndarray]] = {PLACES: [], LEVELS: [], SCALES: []}
    for name, leaf in trees.flatten(gradient):
        left = np.asarray(leaf, np.float32)
        largest.append(most := largest_of(left))
        for cuts, of_pass in _passes(name, left.shape, places):
            parts = [_of_blocks(part, of_pass, most) for part in cut(left, cuts)]
            for part, (_, length) in zip(parts, cuts.shapes, strict=True):
                kinds = part.codes_BS.shape[1]
                streams[PLACES].append(pack(part.places_BQ, _width(length)))
                streams[LEVELS].append(pack(part.levels_BQ, kinds))
                streams[SCALES].append(part.codes_BS.reshape(-1))
            if cuts.token_axis is not None:  # the pass by token follows
                left = left - _dense(parts, cuts, left.shape, most)
    return seal(NAME, gradient, largest, streams)


def _of_blocks(blocks_BL: np.ndarray, places: int, most: np.float32) -> Blocks:
    """The sent values of blocks. `most` is the largest magnitude of their leaf."""
    count = _quota(blocks_BL.shape[1], places)
    chunks = [
        _of_chunk(blocks_BL[start : start + _CHUNK], count, most)
        for start in range(0, len(blocks_BL), _CHUNK)
    ]
    return Blocks(*(np.concatenate(arrays) for arrays in zip(*chunks, strict=True)))


def _of_chunk(blocks_BL: np.ndarray, count: int, most: np.float32) -> Blocks:
    magnitudes_BL = np.abs(blocks_BL)
    places_BQ = largest_places(magnitudes_BL, count)
    shares_BQ = np.take_along_axis(magnitudes_BL, places_BQ, 1).astype(np.float64)
    units_BQ = np.rint(shares_BQ / (float(most) or 1.0) * _UNIT).astype(np.int64)
    is_large_BQ, codes_BS = two_means(units_BQ)
    levels_BQ = (np.take_along_axis(blocks_BL, places_BQ, 1) < 0).astype(np.uint8)
    if count > 1:
        levels_BQ |= is_large_BQ.astype(np.uint8) << 1
    return Blocks(places_BQ, levels_BQ, codes_BS[:, : _num_magnitudes(count)])


def largest_places(magnitudes_BL: np.ndarray, count: int) -> np.ndarray:
    """int64 [B, count], rising: the places of each block's largest values, the first of equal ones.
    A partition finds the same smallest value on every machine, but not the same places.
    """
    length = magnitudes_BL.shape[1]
    smallest_B1 = np.partition(magnitudes_BL, length - count, axis=1)[:, length - count, None]
    chosen_BL = magnitudes_BL > smallest_B1
    equal_BL = magnitudes_BL == smallest_B1
    wanted_B = count - chosen_BL.sum(axis=1)
    has_more_B = equal_BL.sum(axis=1) > wanted_B
    if has_more_B.any():
        of_equal = equal_BL[has_more_B]
        first = np.cumsum(of_equal, axis=1) <= wanted_B[has_more_B, None]
        equal_BL[has_more_B] = of_equal & first
    return np.nonzero(chosen_BL | equal_BL)[1].reshape(-1, count)


def two_means(units_BQ: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The two magnitudes of each block.

    Returns:
      bool [B, Q], true for values of the larger magnitude. uint8 [B, 2], the codes of the larger
      and the smaller magnitude.

    Args:
      units_BQ: int64, magnitudes as multiples of 2 ** -32 of the largest of the leaf.
    """
    count = units_BQ.shape[1]
    order_BQ = np.argsort(-units_BQ, axis=1, kind="stable")
    falling_BQ = np.take_along_axis(units_BQ, order_BQ, 1)
    sums_BQ = np.cumsum(falling_BQ, axis=1).astype(np.float64)  # exact below 2 ** 53
    rest_BQ = sums_BQ[:, -1:] - sums_BQ
    taken_Q = np.arange(1, count + 1, dtype=np.float64)
    left_Q = np.maximum(count - taken_Q, 1)  # the last has no rest
    # The squared error is least where the two means explain most.
    last_B1 = np.argmax(sums_BQ**2 / taken_Q + rest_BQ**2 / left_Q, axis=1)[:, None]
    means = (sums_BQ / taken_Q, rest_BQ / left_Q)
    means_BS = np.concatenate([np.take_along_axis(mean, last_B1, 1) for mean in means], axis=1)
    is_large_BQ = np.zeros(units_BQ.shape, bool)
    np.put_along_axis(is_large_BQ, order_BQ, np.arange(count) <= last_B1, 1)
    return is_large_BQ, codes_of(means_BS / _UNIT)


def _decode(message: Tree, like: Tree, places: int) -> Tree:
    sizes = [
        size for name, leaf in trees.flatten(like) for size in _sizes(name, leaf.shape, places)
    ]
    totals = [sum(of_stream) for of_stream in zip(*sizes, strict=True)] or [0, 0, 0]
    expected = dict(zip((PLACES, LEVELS, SCALES), totals, strict=True))
    streams = unseal(NAME, message, like, expected)
    reader, decoded = StreamReader(streams), {}
    for (name, leaf), most in zip(trees.flatten(like), streams[LARGEST], strict=True):
        passes = [
            _dense([_read(name, reader, *s, of_pass) for s in cuts.shapes], cuts, leaf.shape, most)
            for cuts, of_pass in _passes(name, leaf.shape, places)
        ]
        decoded[name] = passes[0] if len(passes) == 1 else passes[0] + passes[1]
    return trees.unflatten(decoded)


def _read(name: str, reader: StreamReader, blocks: int, length: int, places: int) -> Blocks:
    """The next blocks of a message. Raises `BadEncoding`."""
    count, width = _quota(length, places), _width(length)
    total, kinds = blocks * count, _num_magnitudes(count)
    packed = reader.take(PLACES, num_bytes(total, width))
    packed_levels = reader.take(LEVELS, num_bytes(total, kinds))
    codes_BS = reader.take(SCALES, blocks * kinds).reshape(blocks, kinds)
    places_BQ = unpack(packed, total, width).astype(np.int64).reshape(blocks, count)
    if (places_BQ[:, -1] >= length).any() or (np.diff(places_BQ, axis=1) <= 0).any():
        raise BadEncoding(problem=f"places of `{name}` do not rise, or lie outside their block")
    if (np.diff(codes_BS.astype(np.int16), axis=1) < 0).any():
        raise BadEncoding(problem=f"the larger magnitude of a block of `{name}` is the smaller")
    is_clean = has_clean_end(packed, total, width)
    if not (is_clean and has_clean_end(packed_levels, total, kinds)):
        raise BadEncoding(problem=f"`{name}` is followed by bits that no value has")
    levels = unpack(packed_levels, total, kinds).astype(np.uint8)
    return Blocks(places_BQ, levels.reshape(blocks, count), codes_BS)


def _dense(parts: list[Blocks], cuts: Cuts, shape: tuple[int, ...], most: np.float32) -> np.ndarray:
    """float32 of the leaf's shape: what was sent, and zeros."""
    dense = []
    for (places_BQ, levels_BQ, codes_BS), of_part in zip(parts, cuts.shapes, strict=True):
        magnitudes_BS = magnitudes_of(codes_BS, most)
        is_small_BQ = ~(levels_BQ >> 1).astype(bool) & (codes_BS.shape[1] > 1)
        values_BQ = np.take_along_axis(magnitudes_BS, is_small_BQ.astype(np.int64), 1)
        dense_BL = np.zeros(of_part, np.float32)
        np.put_along_axis(dense_BL, places_BQ, np.where(levels_BQ & 1, -values_BQ, values_BQ), 1)
        dense.append(dense_BL)
    return joined(dense, cuts, shape)


def _quota(length: int, places: int) -> int:
    """Places of a block of this length, in proportion to it and at least one."""
    return max(1, (places * length + BLOCK // 2) // BLOCK)


def _width(length: int) -> int:
    """Bits of a place in a block of this length."""
    return max(1, (length - 1).bit_length())


def _num_magnitudes(count: int) -> int:
    """Magnitudes of a block, and bits of a level."""
    return min(2, count)


def _sizes(name: str, shape: tuple[int, ...], places: int) -> Iterator[tuple[int, int, int]]:
    """Bytes of a leaf in the streams of places, levels and scales, of each kind of block."""
    for cuts, of_pass in _passes(name, shape, places):
        for blocks, length in cuts.shapes:
            count = _quota(length, of_pass)
            total, kinds = blocks * count, _num_magnitudes(count)
            yield (
                num_bytes(total, _width(length)),
                num_bytes(total, kinds),
                blocks * kinds,
            )
