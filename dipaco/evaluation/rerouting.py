"""Perplexity when the path may change every W tokens.

DiPaCo (arXiv 2403.10616) section 2.4 and Table 3: a document is cut into chunks of W tokens, and
the text up to the end of a chunk decides which path predicts the next one. The document router
chooses the path of the first chunk, which begins after the routing prefix.

A path that takes over reads the text so far again, since the cache holds keys and values of another
path. Token probabilities come from its own full forward, so nothing is approximate. The tokens read
again are counted.

Axes: N documents, T tokens, P paths.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from dipaco.evaluation.perplexity import perplexity


class ReroutingResult(NamedTuple):
    """The result for one W."""

    perplexity: float
    switches: int  # changes of path within documents
    tokens_read_again: int  # Paths that took over read them.
    tokens: int  # predicted


def path_of_tokens(
    path_N: np.ndarray, choice_NT: np.ndarray, every: int, prefix_tokens: int
) -> np.ndarray:
    """The path that predicts each token: int32 [N, T].

    Args:
      path_N: [N], the document router's choice for the prefix and the first chunk.
      choice_NT: int32 [N, T], the path that the router would choose after each token.
      every: W, the tokens of a chunk.
    """
    index_T = np.arange(choice_NT.shape[1])
    chunk_T = np.maximum(index_T - prefix_tokens, 0) // every
    asked_T = np.maximum(prefix_tokens + chunk_T * every - 1, 0)  # the last token read before it
    return np.where(chunk_T == 0, path_N[:, None], choice_NT[:, asked_T]).astype(np.int32)


def rerouted(
    values: Iterable[np.ndarray],
    path_NT: np.ndarray,
    lengths_N: np.ndarray,
    prefix_tokens: int,
) -> ReroutingResult:
    """Perplexity where every token is predicted by the path chosen for it.

    Args:
      values: for each path in order, float32 [N, T] log-likelihoods, 0 for tokens that are not
        predicted (`perplexity.score_tokens`).

    Raises:
      NothingToScore: no document is longer than the prefix.
    """
    sum_N = np.zeros(len(path_NT))
    for path, value_NT in enumerate(values):
        sum_N += np.where(path_NT == path, value_NT.astype(np.float64), 0.0).sum(axis=1)
    index_T = np.arange(path_NT.shape[1])
    is_scored_NT = (index_T >= prefix_tokens) & (index_T < lengths_N[:, None])
    is_switch_NT = np.zeros(path_NT.shape, bool)
    is_switch_NT[:, 1:] = path_NT[:, 1:] != path_NT[:, :-1]
    is_switch_NT &= is_scored_NT
    count_N = is_scored_NT.sum(axis=1)
    return ReroutingResult(
        perplexity=perplexity(sum_N, count_N),
        switches=int(is_switch_NT.sum()),
        tokens_read_again=int((is_switch_NT * index_T).sum()),
        tokens=int(count_N.sum()),
    )
