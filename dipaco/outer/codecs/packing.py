"""Numbers of a few bits packed without gaps, and magnitudes in a byte.

Packed numbers begin with their lowest bit. A magnitude is a share of its leaf's largest value, in
eighths of an octave. It comes back within 4.4 % (half a step), over 31 octaves, and a smaller one
is zero. Powers of two are exact, and the eighths between them written out, since not every
machine's `exp2` has the same last bit.
"""

import numpy as np

ZERO = 255  # code of a magnitude that is too small
_EIGHTHS = np.array(  # 2 ** -(i / 8)
    [
        1.0,
        0.9170040432046712,
        0.8408964152537145,
        0.7711054127039704,
        0.7071067811865476,
        0.6484197773255048,
        0.5946035575013605,
        0.5452538663326288,
    ]
)
_HALF_STEP = 0.9576032806985737  # 2 ** -(1 / 16)
_CODES = np.arange(ZERO)
_SHARES = np.ldexp(_EIGHTHS[_CODES % 8], -(_CODES // 8))  # falling
_LOWEST = _SHARES[::-1] * _HALF_STEP  # rising: the smallest share of each code, from the last
SHARES = np.append(_SHARES, 0.0).astype(np.float32)  # indexed by code


def num_bytes(count: int, width: int) -> int:
    """Bytes of `count` numbers of `width` bits."""
    return -(-count * width // 8)


def pack(numbers: np.ndarray, width: int) -> np.ndarray:
    """uint8 [num_bytes(count, width)]. Zeros fill the last byte."""
    flat = numbers.reshape(-1)
    if width == 8:
        return flat.astype(np.uint8)
    bits = (flat[:, None] >> np.arange(width, dtype=flat.dtype)) & 1
    return np.packbits(bits.astype(np.uint8).reshape(-1), bitorder="little")


def unpack(packed: np.ndarray, count: int, width: int) -> np.ndarray:
    """uint16 [count]: the inverse, for a width up to 16."""
    bits = np.unpackbits(packed, count=count * width, bitorder="little").reshape(count, width)
    return bits.astype(np.uint16) @ (np.uint16(1) << np.arange(width, dtype=np.uint16))


def has_clean_end(packed: np.ndarray, count: int, width: int) -> bool:
    """True if the bits behind the last number are zeros, as `pack` leaves them."""
    unused = 8 * len(packed) - count * width
    return not unused or not packed[-1] >> (8 - unused)


def codes_of(shares: np.ndarray) -> np.ndarray:
    """uint8: the code nearest to each share, 0 to 1, in the logarithm."""
    return (ZERO - np.searchsorted(_LOWEST, shares, side="right")).astype(np.uint8)


def magnitudes_of(codes: np.ndarray, largest: np.float32) -> np.ndarray:
    """float32, in the shape of `codes`."""
    return SHARES[codes] * largest


def largest_of(leaf: np.ndarray) -> np.float32:
    """The largest magnitude of a leaf. 0 for an empty leaf."""
    return np.abs(leaf).max(initial=np.float32(0))
