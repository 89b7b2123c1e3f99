"""Routing by likelihood: a document goes to the path under which its first tokens are likeliest.

Features of the base model cannot tell what the paths have learned since. The paths can: each scores
the first tokens of a document (`data.prefix_tokens`), and the likeliest wins. With many paths
only a *shortlist* scores it, the paths that the router of features ranks first. Its first choice
starts ahead by `routing.prior` nats, which decides if a document is too short to tell.

SmallTalk LM (arXiv 2410.03529) routes by likelihood, under separate small models and without a
shortlist.

Axes: N documents, n paths of a shortlist, P paths.
"""

import numpy as np

from dipaco.routing.capacity import balancing_prices, bounds


def prefix_scores(
    prefix_NP: np.ndarray, shortlist_Nn: np.ndarray, prior: float = 0.0
) -> np.ndarray:
    """The score of every path of a document: float64 [N, P], nats. The highest wins.

    Args:
      prefix_NP: [N, P] log-likelihood of a document's first tokens under each path. Entries outside
        the shortlist are not read.
      shortlist_Nn: int [N, n] the paths that are compared, by features, the best first.
      prior: nats by which the first path starts ahead.

    Returns:
      Log-likelihood plus prior, up to a constant the posterior's logarithm. Minus infinity outside
      the shortlist.
    """
    rows_N1 = np.arange(len(shortlist_Nn))[:, None]
    score_NP = np.full(prefix_NP.shape, -np.inf)
    score_NP[rows_N1, shortlist_Nn] = prefix_NP[rows_N1, shortlist_Nn]
    score_NP[rows_N1[:, 0], shortlist_Nn[:, 0]] += prior
    return score_NP


def likeliest(score_NP: np.ndarray, shortlist_Nn: np.ndarray) -> np.ndarray:
    """The path of the highest score: int32 [N]. The first in the shortlist wins among equal ones.

    A document of a single token has no likelihood, so all its scores are equal without a prior.
    Features alone then choose its path.
    """
    in_order_Nn = np.take_along_axis(score_NP, shortlist_Nn, axis=1)
    best_N1 = in_order_Nn.argmax(axis=1)[:, None]
    return np.take_along_axis(shortlist_Nn, best_N1, axis=1)[:, 0].astype(np.int32)


def balancing_nats(
    score_NP: np.ndarray, shortlist_NP: np.ndarray, *, floor: float, capacity: float | None
) -> np.ndarray:
    """Prices of the paths under which `balanced` bounds the documents of each: float64 [P], nats.

    Args:
      score_NP: log-likelihood plus prior of each document under the paths of its shortlist.
      shortlist_NP: int [N, P], all paths, the best by features first.
      floor, capacity: bounds on a path's documents as a share of the mean, as in `RoutingConfig`.

    Bounds are exact for these documents.
    """
    cost_NP = np.empty(shortlist_NP.shape)
    np.put_along_axis(cost_NP, shortlist_NP, -score_NP, axis=1)
    return balancing_prices(cost_NP, *bounds(*cost_NP.shape, floor, capacity))


def balanced(
    score_Nn: np.ndarray, shortlist_Nn: np.ndarray, price_P: np.ndarray, num_choices: int = 1
) -> np.ndarray:
    """The best paths of each document under prices: int32 [N, num_choices], best first.

    Args:
      score_Nn, shortlist_Nn: as in `balancing_nats`.
      price_P: nats that a path's score is lowered by.
      num_choices: at most n. The first in the shortlist wins among equal paths.
    """
    order_Nn = np.argsort(price_P[shortlist_Nn] - score_Nn, axis=1, kind="stable")
    return np.take_along_axis(shortlist_Nn, order_Nn[:, :num_choices], axis=1).astype(np.int32)
