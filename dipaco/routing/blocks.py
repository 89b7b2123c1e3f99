"""Rows in blocks of one fixed shape: a document alone gets the same bits as in a batch.

A matrix product sums in an order that depends on the shape of its operands. Without this, a
document between two paths could take one in training and the other when it is served alone.
"""

from collections.abc import Callable

import numpy as np

BLOCK_ROWS = 256


def in_blocks(function: Callable[[np.ndarray], np.ndarray], x_ND: np.ndarray) -> np.ndarray:
    """Applies `function` ([BLOCK_ROWS, D] -> [BLOCK_ROWS, E], row by row) to any number of rows.

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
