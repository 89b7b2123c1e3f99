"""Perplexity of mixtures: each token is predicted by several paths together.

A mixture weighs the paths' probabilities of a token by the paths' posterior. By the first tokens of
a document, once: as many paths are read as are mixed. Or renewed at every token by all that stands
before it (a Bayesian mixture), for which every path must be read. Likelihoods of long texts make
posteriors too sure, so their logarithms are divided by a temperature.

Scores come one path at a time, so P paths need the memory of a few.

Axes: N documents, T tokens of context, P paths.
"""

from collections.abc import Iterable

import numpy as np

TEMPERATURE = 2.0  # The posterior is too sure of one path at 1, and gains little at 8.


def best_of(score_NP: np.ndarray, count: int) -> np.ndarray:
    """The scores [N, P], minus infinity for all but the best `count` paths of each document."""
    order_NP = np.argsort(-score_NP, axis=1, kind="stable")[:, :count]
    kept_NP = np.full(score_NP.shape, -np.inf)
    np.put_along_axis(kept_NP, order_NP, np.take_along_axis(score_NP, order_NP, axis=1), axis=1)
    return kept_NP


def log_posterior(score_NP: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    """log softmax(score / temperature) over the paths: float64 [N, P]."""
    scaled_NP = score_NP / temperature
    scaled_NP = scaled_NP - scaled_NP.max(axis=1, keepdims=True)
    return scaled_NP - np.log(np.exp(scaled_NP).sum(axis=1, keepdims=True))


class Mixture:
    """Mixes paths, added one by one, with weights that are constant within a document.

    Args:
      log_weight_NP: [N, P] logarithms of weights that sum to one over the paths.
    """

    def __init__(self, log_weight_NP: np.ndarray):
        self._log_weight_NP, self._num_added = log_weight_NP, 0
        self._total_NT: np.ndarray | None = None

    def add(self, value_NT: np.ndarray) -> None:
        """Adds the next path's log-likelihood of each token."""
        weighted_NT = value_NT + self._log_weight_NP[:, self._num_added, None]
        self._num_added += 1
        self._total_NT = _log_add(self._total_NT, weighted_NT)

    def values(self) -> np.ndarray:
        """float64 [N, T]: log-likelihood of each token under the mixture."""
        assert self._total_NT is not None
        return self._total_NT


class RenewedMixture:
    """The same with the posterior of all tokens before each one.

    Args:
      score_NP: [N, P] each path's score by the tokens that are not predicted, in nats.
    """

    def __init__(self, score_NP: np.ndarray, temperature: float = 1.0):
        self._score_NP, self._temperature, self._num_added = score_NP, temperature, 0
        self._total_NT: np.ndarray | None = None
        self._weight_NT: np.ndarray | None = None

    def add(self, value_NT: np.ndarray) -> None:
        """Adds the next path's log-likelihood of each token, 0 if it is not predicted."""
        value_NT = value_NT.astype(np.float64)
        score_N1 = self._score_NP[:, self._num_added, None]
        before_NT = (score_N1 + np.cumsum(value_NT, axis=1) - value_NT) / self._temperature
        self._num_added += 1
        self._weight_NT = _log_add(self._weight_NT, before_NT)
        self._total_NT = _log_add(self._total_NT, before_NT + value_NT)

    def values(self) -> np.ndarray:
        """float64 [N, T]: log-likelihood of each token under the mixture."""
        assert self._total_NT is not None
        assert self._weight_NT is not None
        return self._total_NT - self._weight_NT


def mixed(
    mixtures: Iterable[Mixture | RenewedMixture],
    paths: Iterable[np.ndarray],
    is_scored_NT: np.ndarray,
) -> list[np.ndarray]:
    """Summed log-likelihood of each document under each mixture: float64 [N] each.

    Args:
      paths: [N, T] log-likelihoods under each path in turn, 0 for tokens not predicted.
    """
    mixtures = list(mixtures)
    for value_NT in paths:
        for mixture in mixtures:
            mixture.add(value_NT)
    return [np.where(is_scored_NT, each.values(), 0.0).sum(axis=1) for each in mixtures]


def _log_add(total_NT: np.ndarray | None, added_NT: np.ndarray) -> np.ndarray:
    return added_NT if total_NT is None else np.logaddexp(total_NT, added_NT)
