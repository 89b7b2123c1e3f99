"""Isotropic merging: all directions of a matrix's mean outer gradient move it as far.

Iso-C of "No Task Left Behind: Isotropic Model Merging" (arXiv 2502.04959), between averaging and
the outer step: where a matrix's mean is U diag(s) V^T, the step takes mean(s) U V^T. (There the
matrix is a sum, and a factor follows; here the outer rate is that factor.) What the paths agree on
has large singular values; so common directions shrink and those of few paths grow, while the sum of
the singular values stays. IsoLoCo (arXiv 2607.03011) does this to DiLoCo's outer gradients, without
momentum, at an outer rate of 1.6.

So are the matrices of the blocks. Embedding and head stay as they are, as in open implementations
for language models: most of their rows are of rare tokens, which would move as far as common ones.
Vectors (norms) stay too.

Singular values and vectors are computed in float64 by LAPACK, and the result is rounded to float32.
"""

from typing import Any

import numpy as np

from dipaco import trees
from dipaco.model.config import VOCABULARY_AXIS

Module = dict[str, Any]  # part name -> tree of arrays


def flatten_spectrum(mean: Module) -> None:
    """Makes the singular values of every matrix equal, in place.

    Args:
      mean: float32, from `WeightedMean`. A step holds one leaf of it in float64, three times, while
        it is decomposed.
    """
    for name, leaf in trees.flatten(mean):
        if leaf.ndim == 2 and name not in VOCABULARY_AXIS:
            leaf[...] = isotropic(leaf)


def isotropic(matrix: np.ndarray) -> np.ndarray:
    """float64 [rows, columns]: mean(s) U V^T of a matrix U diag(s) V^T.

    Singular values that rounding made, below the largest times float32's epsilon times the longer
    side, stay out of the mean and of the result: a matrix of rank r stays one.
    """
    left, singular, right = np.linalg.svd(matrix.astype(np.float64), full_matrices=False)
    smallest = singular.max(initial=0.0) * max(matrix.shape) * np.finfo(np.float32).eps
    rank = int((singular > smallest).sum())
    if not rank:
        return np.zeros(matrix.shape)
    return singular[:rank].mean() * (left[:, :rank] @ right[:rank])
