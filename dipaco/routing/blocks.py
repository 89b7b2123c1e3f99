"""Rows in blocks of one shape: a document alone gets the same bits as in a batch.

A matrix product sums in an order that depends on the shape of its operands: OpenBLAS has other
kernels for small products, on a machine with AVX-512 up to 64 rows by 896 by 16. Without this, a
document between two paths could take one in training and the other when it is served alone.
"""

from collections.abc import Callable

import numpy as np

BLOCK_ROWS = 8  # The fewer, the less a prompt costs, and the more a batch of documents does.


def in_blocks(function: Callable[[np.ndarray], np.ndarray], x_ND: np.ndarray) -> np.ndarray:
    """Applies `function` ([block rows, D] -> [block rows, E], row by row) to any number of rows.

    Args:
      function: acts on each row apart, in float64.
      x_ND: [N, D], any float type. N may be 0.

    Returns:
      [N, E] in the function's type.
    """
    outputs = []
    for start in range(0, max(len(x_ND), 1), BLOCK_ROWS):
        rows_BD = x_ND[start : start + BLOCK_ROWS]
        block_BD = np.zeros((BLOCK_ROWS, x_ND.shape[1]), np.float64)
        block_BD[: len(rows_BD)] = rows_BD
        outputs.append(function(block_BD)[: len(rows_BD)])
    return np.concatenate(outputs)
