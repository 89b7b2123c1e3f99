"""Perplexity of documents: under one path, under the routed path, under the best path in hindsight.

DiPaCo (arXiv 2403.10616) section 4 leaves the router's 32 tokens out of every perplexity. So does
every number here, dense rows included. Log-likelihoods are summed in float64 on the host: over
millions of tokens float32 loses digits.

Axes: N documents, T tokens of context, P paths.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from dipaco.errors import NothingToScore

# (tokens int32 [B, T], segments int32 [B, T]) -> [B, T]: log p(token t | tokens before it)
LogLikelihoodFunction = Callable[[np.ndarray, np.ndarray], Any]


class TokenScores(NamedTuple):
    """Log-likelihoods of documents under one path, in nats."""

    sums: np.ndarray  # float64 [N], of the tokens that are predicted
    counts: np.ndarray  # int64 [N], how many those are
    values: np.ndarray  # float32 [N, T], 0 for tokens that are not predicted
    prefixes: np.ndarray  # float64 [N], of the prefix: the first token has nothing before it


def score_documents(
    log_likelihood_fn: LogLikelihoodFunction,
    tokens_NT: np.ndarray,
    lengths_N: np.ndarray,
    *,
    prefix_tokens: int = 32,
    batch_size: int = 32,
) -> tuple[np.ndarray, np.ndarray]:
    """Sums the log-likelihood of each document's tokens from index `prefix_tokens` on.

    Args:
      log_likelihood_fn: tokens and segments (1 for a token, 0 for padding), both int32 [batch_size,
        T], -> [batch_size, T] of natural logarithms. Always called with this one shape. Its entries
        at padding and within the prefix are ignored.
      tokens_NT: [N, T] documents cut to the context, padded with 0.
      lengths_N: [N] tokens each document has in its row, at most T.
      prefix_tokens: leading tokens that are not predicted, at least 1, since nothing comes before
        the first token.

    Returns:
      (float64 [N] sums, int64 [N] tokens summed). Both are 0 for a document that ends within the
      prefix.
    """
    sum_N = np.zeros(len(tokens_NT))
    scored = _scored(log_likelihood_fn, tokens_NT, lengths_N, prefix_tokens, batch_size)
    for rows, values_BT, _ in scored:
        sum_N[rows] = values_BT.sum(axis=1)
    return sum_N, _counts(lengths_N, prefix_tokens)


def score_tokens(
    log_likelihood_fn: LogLikelihoodFunction,
    tokens_NT: np.ndarray,
    lengths_N: np.ndarray,
    *,
    prefix_tokens: int = 32,
    batch_size: int = 32,
) -> TokenScores:
    """Scores like `score_documents`, with the summed values and the prefix's log-likelihoods."""
    sum_N, value_NT = np.zeros(len(tokens_NT)), np.zeros(tokens_NT.shape, np.float32)
    prefix_N = np.zeros(len(tokens_NT))
    scored = _scored(log_likelihood_fn, tokens_NT, lengths_N, prefix_tokens, batch_size)
    for rows, values_BT, prefix_B in scored:
        sum_N[rows] = values_BT.sum(axis=1)
        value_NT[rows], prefix_N[rows] = values_BT, prefix_B
    return TokenScores(sum_N, _counts(lengths_N, prefix_tokens), value_NT, prefix_N)


def is_scored(counts_N: np.ndarray, num_tokens: int, prefix_tokens: int) -> np.ndarray:
    """The tokens that are predicted, by how many each document has of them: bool [N, T]."""
    index_T = np.arange(num_tokens) - prefix_tokens
    return (index_T >= 0) & (index_T < counts_N[:, None])


def _counts(lengths_N: np.ndarray, prefix_tokens: int) -> np.ndarray:
    return np.clip(np.asarray(lengths_N) - prefix_tokens, 0, None).astype(np.int64)


def _scored(
    log_likelihood_fn: LogLikelihoodFunction,
    tokens_NT: np.ndarray,
    lengths_N: np.ndarray,
    prefix_tokens: int,
    batch_size: int,
) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    """Batch by batch: the documents, float64 [documents, T] values of their tokens, and the sums
    [documents] of what they say of the prefix.
    """
    assert prefix_tokens >= 1
    num_documents, num_tokens = tokens_NT.shape
    index_T = np.arange(num_tokens)

    def fetched(rows: slice, log_likelihood_BT: Any) -> tuple[slice, np.ndarray, np.ndarray]:
        values_BT = np.asarray(log_likelihood_BT, np.float64)[: rows.stop - rows.start]
        is_token_BT = index_T < lengths_N[rows, None]
        is_scored_BT = (index_T >= prefix_tokens) & is_token_BT
        is_prefix_BT = (index_T > 0) & (index_T < prefix_tokens) & is_token_BT
        prefix_B = np.where(is_prefix_BT, values_BT, 0.0).sum(axis=1)
        return rows, np.where(is_scored_BT, values_BT, 0.0), prefix_B

    waiting = None
    for start in range(0, num_documents, batch_size):
        rows = slice(start, min(start + batch_size, num_documents))
        tokens_BT = np.zeros((batch_size, num_tokens), np.int32)
        tokens_BT[: rows.stop - rows.start] = tokens_NT[rows]
        segments_BT = np.zeros((batch_size, num_tokens), np.int32)
        segments_BT[: rows.stop - rows.start] = index_T < lengths_N[rows, None]
        started = log_likelihood_fn(tokens_BT, segments_BT)
        # One batch late: the device computes this batch while the host adds up the previous one.
        if waiting is not None:
            yield fetched(*waiting)
        waiting = (rows, started)
    if waiting is not None:
        yield fetched(*waiting)


def perplexity(sum_N: np.ndarray, count_N: np.ndarray) -> float:
    """exp(-total log-likelihood / total tokens).

    Raises:
      NothingToScore: no document is longer than the prefix.
    """
    num_tokens = int(np.sum(count_N))
    if not num_tokens:
        raise NothingToScore(documents=np.size(count_N))
    return float(np.exp(-np.sum(sum_N, dtype=np.float64) / num_tokens))


def bits_per_byte(perplexity: float, num_tokens: int, num_bytes: int) -> float:
    """The same for each byte of the text that the tokens stand for, in bits. Unlike perplexity it
    can be compared between tokenizers.
    """
    return num_tokens * math.log2(perplexity) / max(1, num_bytes)


def routed(sum_PN: np.ndarray, path_N: np.ndarray) -> np.ndarray:
    """Log-likelihood [N] of each document under the path that it was routed to.

    Args:
      sum_PN: [P, N] every document's summed log-likelihood under every path.
      path_N: [N] the path of each document, from its prefix alone.
    """
    return sum_PN[path_N, np.arange(len(path_N))]


def wrong_path(sum_PN: np.ndarray, path_N: np.ndarray) -> np.ndarray:
    """Log-likelihood [N] of each document under the paths that it was not routed to, their mean:
    what a wrong path costs. There are two paths or more.
    """
    return (sum_PN.sum(axis=0) - routed(sum_PN, path_N)) / (len(sum_PN) - 1)
