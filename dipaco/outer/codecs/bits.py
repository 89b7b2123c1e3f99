"""Numbers of a few bits, packed: the lowest bit first, without gaps between them."""

import numpy as np


def num_bytes(count: int, width: int) -> int:
    """Bytes of `count` numbers of `width` bits."""
    return -(-count * width // 8)


def pack(numbers: np.ndarray, width: int) -> np.ndarray:
    """uint8 [num_bytes(count, width)]; the last byte is filled with zeros."""
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
    """Whether the bits behind the last number are zeros, as `pack` leaves them."""
    unused = 8 * len(packed) - count * width
    return not unused or not packed[-1] >> (8 - unused)
