"""Blockwise int8: a float32 scale for each block of values, so that a large value costs precision
in its own block only. NumPy, for the same bits on every machine.

The swarm's wire codec (`swarm/network/codecs.py`) shares the blocks and not the arithmetic: it
multiplies by 127 / largest where this divides by largest / 127, so their last bits differ.
"""

import numpy as np

BLOCK = 256  # values that share a scale: 32 / 256 of a bit more per value


def quantise(leaf: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(int8 values of the leaf's shape, float32 scales [blocks]). A value is int8 * scale."""
    blocks = in_blocks(leaf.astype(np.float32, copy=False))
    scales = np.abs(blocks).max(axis=1) / np.float32(127)
    # The scale is zero for a block of zeros, and of values too small for one.
    divisors = np.where(scales > 0, scales, np.float32(1))
    values = np.clip(np.rint(blocks / divisors[:, None]), -127, 127).astype(np.int8)
    return values.reshape(-1)[: leaf.size].reshape(leaf.shape), scales


def dequantise(values: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """float32 of the values' shape."""
    products = in_blocks(values) * scales[:, None]
    return products.reshape(-1)[: values.size].reshape(values.shape)


def num_blocks(size: int) -> int:
    """Blocks of `size` values. The last one may be short."""
    return -(-size // BLOCK)


def in_blocks(leaf: np.ndarray) -> np.ndarray:
    """[blocks, BLOCK] of the leaf's type. Zeros fill the last block."""
    blocks = np.zeros((num_blocks(leaf.size), BLOCK), leaf.dtype)
    blocks.reshape(-1)[: leaf.size] = leaf.reshape(-1)
    return blocks
