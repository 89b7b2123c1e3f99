"""Magnitudes in a byte: as a share of the largest value of their leaf, in eighths of an octave.

A magnitude comes back within 4.4 % (half a step), over 31 octaves; what is smaller is zero. Powers
of two are exact, and the eighths between them written out, since not every machine's `exp2` has the
same last bit.
"""

import numpy as np

ZERO = 255  # the code of what is too small
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
SHARES = np.append(_SHARES, 0.0).astype(np.float32)  # by code


def codes_of(shares: np.ndarray) -> np.ndarray:
    """uint8: the code nearest to each share, 0 to 1, in the logarithm."""
    return (ZERO - np.searchsorted(_LOWEST, shares, side="right")).astype(np.uint8)


def magnitudes_of(codes: np.ndarray, largest: np.float32) -> np.ndarray:
    """float32, of the codes' shape."""
    return SHARES[codes] * largest


def largest_of(leaf: np.ndarray) -> np.float32:
    """The largest magnitude of a leaf; 0 of an empty one."""
    return np.abs(leaf).max(initial=np.float32(0))
