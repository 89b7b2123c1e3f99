"""Balanced expectation maximisation: small models share out documents, and learn from their share.

SmallTalk LM (arXiv 2410.03529) section 2: P small language models score the first tokens of every
document. Documents are divided among them at the least total loss, within bounds on the documents
of each. Each model learns from its documents, and the next round begins. Prices keep the bounds
(`capacity`).

The room does not know the models: they come as two functions.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dipaco.routing.capacity import balancing_prices, bounds
from dipaco.routing.errors import TooFewTrainingDocuments

Models = Any
Learn = Callable[[Models, np.ndarray, int], Models]  # (models, path of each document [N], round)
Score = Callable[[Models], np.ndarray]  # -> log-likelihoods [N, P], nats


class BalancedEM(NamedTuple):
    """The models after the last round, and what they say of the documents they learned from."""

    models: Models
    score_NP: np.ndarray  # float64, nats
    price_P: np.ndarray  # float64, under which no model gets too many of them


def balanced_em(
    models: Models,
    learn: Learn,
    score: Score,
    first_N: np.ndarray,
    num_paths: int,
    *,
    rounds: int,
    floor: float,
    capacity: float | None,
) -> BalancedEM:
    """Fits P models to N documents.

    Args:
      first_N: the path of each document in the first round.
      floor, capacity: bounds on a path's documents as a share of the mean, as in `RoutingConfig`.

    Raises:
      TooFewTrainingDocuments: fewer documents than paths.
    """
    number = len(first_N)
    if number < num_paths:
        raise TooFewTrainingDocuments(documents=number, paths=num_paths)
    least, most = bounds(number, num_paths, floor, capacity)
    path_N = first_N
    score_NP, price_P = np.zeros((number, num_paths)), np.zeros(num_paths)
    for each in range(rounds):
        models = learn(models, path_N, each)
        score_NP = score(models)
        price_P = balancing_prices(-score_NP, least, most)
        path_N = (score_NP - price_P).argmax(axis=1)
    return BalancedEM(models, score_NP, price_P)
