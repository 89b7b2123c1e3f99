"""Prices that balance the documents among paths, by argmin(cost + price).

Dividing documents among paths at the least total cost, with a least and a largest number of
documents a path, is a transport problem. The dual values of its bounds are prices: with fixed
prices each document is assigned alone, so the rule that balanced the fitted documents also routes a
single one. Balanced assignment is SmallTalk LM's (arXiv 2410.03529), which needs all documents at
once.

Three steps. Sinkhorn iterations with falling temperature (Cuturi 2013, with bounds in place of
equalities) find approximate prices. The remaining excess is moved along cheapest chains of paths
(successive shortest paths, Ahuja, Magnanti and Orlin 1993, ch. 9). Then the prices are raised as
little as needed to make every document's choice strict.

Documents of equal costs are moved one by one too, but no prices can send them apart: all of them
end on one side, and a bound may be missed by as many. The last two steps are then taken again, with
bounds that are tighter by what was missed. Where more documents are equal than a path may have, the
bound of the path nearest to them is for its other documents.
"""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

COOLING = tuple(0.5 * 0.6**k for k in range(14))  # temperatures as shares of the costs' spread
ROUNDS_PER_TEMPERATURE = 6
TRIES = 16  # tries of tighter bounds if equal documents miss the bounds


Bound = int | np.ndarray  # documents of a path: the same for all, or int64 [P]


def bounds(documents: int, num_paths: int, floor: float, capacity: float | None) -> tuple[int, int]:
    """The least and the most documents of a path.

    Args:
      floor, capacity: shares of the mean, as in `RoutingConfig`.
    """
    mean_documents = documents / num_paths
    least = math.floor(floor * mean_documents + 1e-9)
    most = documents if capacity is None else math.ceil(capacity * mean_documents - 1e-9)
    return least, most


def balancing_prices(cost_NP: np.ndarray, least: Bound, most: Bound) -> np.ndarray:
    """Prices under which every path is chosen by at least `least` and at most `most` documents.

    Args:
      cost_NP: [N, P] float64 cost of each document on each path. Memory is a few times this.
      least, most: bounds on the documents of a path, one for all or [P]. Over all paths, the least
        sum to at most N and the most to at least N.

    Returns:
      float64 [P], the lowest is 0. All are 0 if the nearest paths meet the bounds. Documents of
        equal costs choose the same path under any prices. More of them than `most` are not counted
        on the path nearest to them. If fewer miss a bound, the prices are the best of `TRIES` more
        tries, as a rule within all bounds.
    """
    num_documents, num_paths = cost_NP.shape
    least_P, most_P = (np.broadcast_to(bound, num_paths) for bound in (least, most))
    assert least_P.sum() <= num_documents <= most_P.sum()
    path_N = cost_NP.argmin(axis=1)
    count_P = np.bincount(path_N, minlength=num_paths)
    if (count_P <= most_P).all() and (count_P >= least_P).all():
        return np.zeros(num_paths)
    most_P = most_P + _in_large_blocks(cost_NP, path_N, most_P)
    lowest_N = cost_NP.min(axis=1, keepdims=True)
    spread = float(np.mean(cost_NP.max(axis=1, keepdims=True) - lowest_N)) or 1.0
    price_P = spread * np.asarray(
        _soft_prices(
            jnp.asarray((cost_NP - lowest_N) / spread, jnp.float32),
            np.maximum(least_P, 1e-9).astype(np.float32),
            most_P.astype(np.float32),
            np.repeat(COOLING, ROUNDS_PER_TEMPERATURE).astype(np.float32),
        ),
        np.float64,
    )
    return _exact_prices(cost_NP, price_P, least_P, most_P)


def _in_large_blocks(cost_NP: np.ndarray, path_N: np.ndarray, most_P: np.ndarray) -> np.ndarray:
    """int64 [P]: documents of blocks of equal ones that are larger than the bound of the path
    nearest to them, by that path.
    """
    _, alike_N, size = np.unique(cost_NP.min(axis=1), return_inverse=True, return_counts=True)
    rows = np.flatnonzero(size[alike_N] > most_P[path_N])  # few or none
    _, first, size = np.unique(cost_NP[rows], axis=0, return_index=True, return_counts=True)
    home = path_N[rows[first]]
    is_large = size > most_P[home]
    return np.bincount(home[is_large], size[is_large], len(most_P)).astype(np.int64)


def _exact_prices(
    cost_NP: np.ndarray, price_P: np.ndarray, least_P: np.ndarray, most_P: np.ndarray
) -> np.ndarray:
    """Prices that meet the bounds, from approximate ones. The best of several tries wins."""
    num_documents, num_paths = cost_NP.shape
    path_N = (cost_NP + price_P).argmin(axis=1)
    low_P, high_P = least_P.copy(), most_P.copy()  # bounds that a try aims at
    fewest, best_P = (num_paths, 0, 0), price_P
    for _ in range(1 + TRIES):
        detour_PP = _move_along_chains(cost_NP, path_N, low_P, high_P)
        price_P = _strict_prices(detour_PP, price_P)
        price_P = price_P - price_P.min()
        path_N = (cost_NP + price_P).argmin(axis=1)
        count_P = np.bincount(path_N, minlength=num_paths)
        missed = _missed(count_P, least_P, most_P)
        if missed < fewest:
            fewest, best_P = missed, price_P
        if not any(missed[1:]):
            break
        low_P = low_P + np.maximum(least_P - count_P, 0)
        high_P = np.maximum(high_P - np.maximum(count_P - most_P, 0), 0)
        # Together they must still hold all documents: paths with the most room give way.
        while high_P.sum() < num_documents:
            high_P[(high_P - count_P).argmax()] += 1
        while low_P.sum() > num_documents:
            low_P[(low_P - count_P).argmax()] -= 1
        low_P = np.minimum(low_P, high_P)
    return best_P


def _missed(count_P: np.ndarray, least_P: np.ndarray, most_P: np.ndarray) -> tuple[int, int, int]:
    """Violations of the bounds, the worst kind first: empty paths, documents missing below the
    floor, documents too many.
    """
    under_P, over_P = np.maximum(least_P - count_P, 0), np.maximum(count_P - most_P, 0)
    return int((count_P == 0).sum()), int(under_P.sum()), int(over_P.sum())


@jax.jit
def _soft_prices(cost_NP, least_P, most_P, temperatures):
    """Documents are spread over paths by softmin. Prices move by the log of the excess."""

    def update(price_P, temperature):
        share_NP = jax.nn.softmax(-(cost_NP + price_P[None, :]) / temperature, axis=1)
        load_P = jnp.maximum(jnp.sum(share_NP, axis=0), 1e-30)
        free_P = price_P + temperature * jnp.log(load_P)  # the price does not count here
        low_P, high_P = temperature * jnp.log(least_P), temperature * jnp.log(most_P)
        return free_P - jnp.clip(free_P, low_P, high_P), None

    return lax.scan(update, jnp.zeros(cost_NP.shape[1]), temperatures)[0]


def _move_along_chains(
    cost_NP: np.ndarray, path_N: np.ndarray, least_P: np.ndarray, most_P: np.ndarray
) -> np.ndarray:
    """Changes `path_N` in place until the bounds hold, one document a link, cheapest chain first.

    Args:
      path_N: an assignment that is cheapest for its own counts, as argmin(cost + price) always is.

    Returns:
      float64 [P, P]: the least that moving one document from path a to path b would cost.
    """
    num_paths = cost_NP.shape[1]
    count_P = np.bincount(path_N, minlength=num_paths)
    detour_PP = np.empty((num_paths, num_paths))
    document_PP = np.empty((num_paths, num_paths), np.int64)
    stale = range(num_paths)
    while True:
        for path in stale:
            members = np.flatnonzero(path_N == path)
            if not len(members):
                detour_PP[path] = np.inf
                continue
            extra_MP = cost_NP[members] - cost_NP[members, path][:, None]
            document_PP[path] = members[extra_MP.argmin(axis=0)]
            detour_PP[path] = extra_MP.min(axis=0)
        if (count_P > most_P).any():
            givers, takers = count_P > most_P, count_P < most_P
        elif (count_P < least_P).any():
            givers, takers = count_P > least_P, count_P < least_P
        else:
            return detour_PP
        chain = _cheapest_chain(detour_PP, givers, takers)
        moved = [document_PP[link] for link in itertools.pairwise(chain)]
        path_N[moved] = chain[1:]
        count_P[chain[0]] -= 1
        count_P[chain[-1]] += 1
        stale = chain


def _cheapest_chain(detour_PP: np.ndarray, givers: np.ndarray, takers: np.ndarray) -> list[int]:
    """The paths on the cheapest way from any giver to any taker (Bellman and Ford)."""
    num_paths = len(detour_PP)
    distance_P, before_P = np.where(givers, 0.0, np.inf), np.full(num_paths, -1)
    # Rounding could make a cycle of zero cost look like a gain, and the chain would go round it.
    # The rounding is in proportion to the links, however near to zero their sum is.
    rounding = 1e-12 * np.abs(detour_PP[np.isfinite(detour_PP)]).max()
    for _ in range(num_paths):
        through_PP = distance_P[:, None] + detour_PP
        nearest_P = through_PP.min(axis=0)
        is_better = nearest_P < distance_P - rounding
        if not is_better.any():
            break
        before_P[is_better] = through_PP.argmin(axis=0)[is_better]
        distance_P[is_better] = nearest_P[is_better]
    chain = [int(np.where(takers, distance_P, np.inf).argmin())]
    while before_P[chain[0]] >= 0 and len(chain) <= num_paths:
        chain.insert(0, int(before_P[chain[0]]))
    return chain


def _strict_prices(detour_PP: np.ndarray, price_P: np.ndarray) -> np.ndarray:
    """Raises prices until every document prefers its own path by half the widest possible margin.

    A document of path a keeps to it when price_b >= price_a - detour_ab + margin for all b. Such
    prices exist up to the margin that is the least mean of `detour` round any cycle of paths (Karp
    1978). It is zero if equal documents were separated.
    """
    num_paths = len(detour_PP)
    finite = detour_PP[np.isfinite(detour_PP)]
    cost_PP = np.where(np.isfinite(detour_PP), detour_PP, 2 * np.abs(finite).max())
    np.fill_diagonal(cost_PP, 2 * np.abs(finite).max())  # staying is no cycle
    walks = [np.zeros(num_paths)]  # walks[k][b]: the cheapest walk of k links that ends at b
    for _ in range(num_paths):
        walks.append((walks[-1][:, None] + cost_PP).min(axis=0))
    lengths = num_paths - np.arange(num_paths)
    cycle_mean = ((walks[-1] - np.array(walks[:-1])) / lengths[:, None]).max(axis=0).min()
    margin = max(cycle_mean, 0.0) / 2
    for _ in range(num_paths):
        price_P = np.maximum(price_P, (price_P[:, None] - cost_PP + margin).max(axis=0))
    return price_P
