"""Labels: the path under which a document is likeliest.

DiPaCo (arXiv 2403.10616) section 2.4, discriminative routing. Scores come one path at a time,
so P paths need the memory of two.
"""

from collections.abc import Iterable

import numpy as np


def best_paths(scores: Iterable[np.ndarray]) -> np.ndarray:
    """The path under which each document is likeliest: argmax over paths of its scores.

    Args:
      scores: for each path in turn, log-likelihoods in nats, all of one shape: [N] of N documents,
        or [N, T] of the rest of the document after each token.

    Returns:
      int32 in the scores' shape. Ties go to the first path.
    """
    best, label = None, None
    for path, score in enumerate(scores):
        if best is None or label is None:
            best, label = np.array(score, np.float64), np.zeros(score.shape, np.int32)
            continue
        is_better = score > best
        best[is_better] = score[is_better]
        label[is_better] = path
    assert label is not None, "there is at least one path"
    return label
