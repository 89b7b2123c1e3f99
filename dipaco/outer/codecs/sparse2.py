"""Few values, in two bits each: of every 4,096, the `places` largest.

A block sends where its largest values are (12 bits each, rising), the sign of each, and which of
the block's two magnitudes it has. The two are the means of the larger and of the smaller ones,
parted where the squared error is least (Lloyd's quantiser of two levels, which sorting finds
exactly), and take a byte each (`magnitudes`). A block of one place has one magnitude. With 64
places of 4,096 that is 0.22 bits a value, with 128 0.44.

What is not sent stays with the path, times `outer.residual_decay`: without momentum in the outer
step, since the residual already sends every phase's gradient over many phases.

Source: SparseLoCo (arXiv 2508.15706), Covenant-72B (2603.08163): top k of blocks of 4,096, two
bits, error feedback with decay 0.95, no momentum. Blocks along the tokens of the vocabulary
(`blocks`), the two magnitudes and the checksum are ours. Equal magnitudes: the first places win.

Axes: B blocks of L values, Q places of each.
"""

from collections.abc import Iterator

import numpy as np

from dipaco import trees
from dipaco.outer.codecs import bits
from dipaco.outer.codecs.blocks import BLOCK, cut, cuts_of, joined
from dipaco.outer.codecs.contract import Codec, Tree
from dipaco.outer.codecs.magnitudes import codes_of, largest_of, magnitudes_of
from dipaco.outer.codecs.sealed import HEADER_BITS, LARGEST, StreamReader, seal, unseal
from dipaco.outer.errors import BadEncoding

NAME = "sparse2"
PLACES, LEVELS, SCALES = "places", "levels", "scales"
_CHUNK = 256  # blocks that are looked at together: 4 MB
_UNIT = 2.0**32  # magnitudes are summed as whole numbers, which have no order


def sparse2(places: int, residual_decay: float) -> Codec:
    """The codec.

    Args:
      places: values that are sent of every 4,096.
      residual_decay: share of what was not sent that is added to the next contribution.
    """
    return Codec(
        NAME,
        lambda gradient: _encode(gradient, places),
        lambda message, like: _decode(message, like, places),
        lambda name, shape: sum(8 * sum(s) for s in _cut_bytes(name, shape, places)) + HEADER_BITS,
        residual_decay=residual_decay,
    )


def _encode(gradient: Tree, places: int) -> Tree:
    largest: list[np.float32] = []
    streams: dict[str, list[np.ndarray]] = {PLACES: [], LEVELS: [], SCALES: []}
    for name, leaf in trees.flatten(gradient):
        leaf = np.asarray(leaf, np.float32)
        largest.append(most := largest_of(leaf))
        for blocks in cut(leaf, cuts_of(name, leaf.shape)):
            count = _quota(blocks.shape[1], places)
            chunks = [
                _encode_blocks(blocks[i : i + _CHUNK], count, most)
                for i in range(0, len(blocks), _CHUNK)
            ]
            places_BQ, levels_BQ, scales_BS = (np.concatenate(c) for c in zip(*chunks, strict=True))
            streams[PLACES].append(bits.pack(places_BQ, _width(blocks.shape[1])))
            streams[LEVELS].append(bits.pack(levels_BQ, _num_scales(count)))
            streams[SCALES].append(scales_BS.reshape(-1))
    return seal(NAME, gradient, largest, streams)


def _encode_blocks(
    blocks_BL: np.ndarray, count: int, most: np.float32
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Places uint16 [B, Q], levels uint8 [B, Q] (bit 0: negative, bit 1: of the larger
    magnitude), scales uint8 [B, number of magnitudes].
    """
    magnitudes_BL = np.abs(blocks_BL)
    places_BQ = largest_places(magnitudes_BL, count)
    shares_BQ = np.take_along_axis(magnitudes_BL, places_BQ, 1).astype(np.float64)
    units_BQ = np.rint(shares_BQ / (float(most) or 1.0) * _UNIT).astype(np.int64)
    is_large_BQ, scales_BS = two_means(units_BQ)
    levels_BQ = (np.take_along_axis(blocks_BL, places_BQ, 1) < 0).astype(np.uint8)
    if count > 1:
        levels_BQ |= is_large_BQ.astype(np.uint8) << 1
    return places_BQ.astype(np.uint16), levels_BQ, scales_BS[:, : _num_scales(count)]


def largest_places(magnitudes_BL: np.ndarray, count: int) -> np.ndarray:
    """int64 [B, count], rising: where the largest values of each block are; of equal ones, the
    first. A partition gives the same smallest of them on every machine, and not the same places.
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
    """Which values are of the larger magnitude (bool [B, Q]), and the codes of the larger and the
    smaller one (uint8 [B, 2]).

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
    means_BS = np.concatenate(
        [
            np.take_along_axis(sums_BQ / taken_Q, last_B1, 1),
            np.take_along_axis(rest_BQ / left_Q, last_B1, 1),
        ],
        axis=1,
    )
    is_large_BQ = np.zeros(units_BQ.shape, bool)
    np.put_along_axis(is_large_BQ, order_BQ, np.arange(count) <= last_B1, 1)
    return is_large_BQ, codes_of(means_BS / _UNIT)


def _decode(message: Tree, like: Tree, places: int) -> Tree:
    sizes = [
        part for name, leaf in trees.flatten(like) for part in _cut_bytes(name, leaf.shape, places)
    ]
    totals = [sum(of_stream) for of_stream in zip(*sizes, strict=True)] or [0, 0, 0]
    streams = unseal(NAME, message, like, dict(zip((PLACES, LEVELS, SCALES), totals, strict=True)))
    reader, decoded = StreamReader(streams), {}
    for (name, leaf), most in zip(trees.flatten(like), streams[LARGEST], strict=True):
        cuts = cuts_of(name, leaf.shape)
        parts = [
            _decode_blocks(name, reader, *shape, _quota(shape[1], places), most)
            for shape in cuts.shapes
        ]
        decoded[name] = joined(parts, cuts, leaf.shape)
    return trees.unflatten(decoded)


def _decode_blocks(
    name: str, reader: StreamReader, blocks: int, length: int, count: int, most: np.float32
) -> np.ndarray:
    """float32 [B, L]. Raises `BadEncoding`."""
    total, width, kinds = blocks * count, _width(length), _num_scales(count)
    packed = reader.take(PLACES, bits.num_bytes(total, width))
    packed_levels = reader.take(LEVELS, bits.num_bytes(total, kinds))
    codes_BS = reader.take(SCALES, blocks * kinds).reshape(blocks, kinds)
    places_BQ = bits.unpack(packed, total, width).astype(np.int64).reshape(blocks, count)
    if (places_BQ[:, -1] >= length).any() or (np.diff(places_BQ, axis=1) <= 0).any():
        raise BadEncoding(problem=f"places of `{name}` do not rise, or lie outside their block")
    if (np.diff(codes_BS.astype(np.int16), axis=1) < 0).any():
        raise BadEncoding(problem=f"the larger magnitude of a block of `{name}` is the smaller")
    is_clean = bits.has_clean_end(packed, total, width)
    if not (is_clean and bits.has_clean_end(packed_levels, total, kinds)):
        raise BadEncoding(problem=f"`{name}` is followed by bits that no value has")
    levels_BQ = bits.unpack(packed_levels, total, kinds).reshape(blocks, count)
    magnitudes_BS = magnitudes_of(codes_BS, most)
    which_BQ = 1 - (levels_BQ >> 1) if kinds == 2 else np.zeros_like(levels_BQ)
    values_BQ = np.take_along_axis(magnitudes_BS, which_BQ.astype(np.int64), 1)
    dense_BL = np.zeros((blocks, length), np.float32)
    np.put_along_axis(dense_BL, places_BQ, np.where(levels_BQ & 1, -values_BQ, values_BQ), 1)
    return dense_BL


def _quota(length: int, places: int) -> int:
    """Places of a block of this length, in proportion to it; one at least."""
    return max(1, (places * length + BLOCK // 2) // BLOCK)


def _width(length: int) -> int:
    """Bits of a place in a block of this length."""
    return max(1, (length - 1).bit_length())


def _num_scales(count: int) -> int:
    """Magnitudes of a block, and bits of a level."""
    return min(2, count)


def _cut_bytes(name: str, shape: tuple[int, ...], places: int) -> Iterator[tuple[int, int, int]]:
    """(places, levels, scales): bytes of the blocks of a leaf, for each of its cuts."""
    for blocks, length in cuts_of(name, shape).shapes:
        count = _quota(length, places)
        kinds = _num_scales(count)
        total = blocks * count
        yield (
            bits.num_bytes(total, _width(length)),
            bits.num_bytes(total, kinds),
            blocks * kinds,
        )
