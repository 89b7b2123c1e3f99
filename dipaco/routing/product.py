"""Product k-means: a k-means on each part of the vector, and a path for every combination.

DiPaCo (arXiv 2403.10616) section 2.4: two levels of K modules make K x K paths. With k-means on
each half of the feature, path (i, j) takes the documents nearest to centre i of the first half and
centre j of the second. K + K centres describe K * K paths, and paths that share a module
share a half. Plain k-means is the product of one part, so both are this file.

Under a capacity bound, assignment and centres alternate as in Lloyd, with `balancing_prices` on the
*paths* each time.
"""

import math
from collections.abc import Sequence

import numpy as np

from dipaco.routing.blocks import in_blocks
from dipaco.routing.capacity import balancing_prices, bounds
from dipaco.routing.kmeans import kmeans

Centres = tuple[np.ndarray, ...]  # one float32 [K, D of the part] for each part of the vector
RESTARTS = 4  # k-means depends on the centres that it begins from, so the best run is kept
ITERATIONS = 50  # a fit is settled before
SETTLED = 1e-4  # stop when a round lowers the objective by a smaller share


def path_costs(x_ND: np.ndarray, centres: Centres) -> np.ndarray:
    """Squared distance of each document to each path: the sum over parts, paths in row-major order.

    Args:
      centres: one [K_l, D_l] for each contiguous part of the D dimensions.

    Returns:
      float64 [N, K_1 * K_2 * ...]
    """
    ends = np.cumsum([centre_KD.shape[1] for centre_KD in centres])[:-1]

    def block_costs(x_BD: np.ndarray) -> np.ndarray:
        cost_BP = np.zeros((len(x_BD), 1))
        for part_BD, centre_KD in zip(np.split(x_BD, ends, axis=1), centres, strict=True):
            cost_BK = _squared_distances(part_BD, centre_KD.astype(np.float64))
            cost_BP = (cost_BP[:, :, None] + cost_BK[:, None, :]).reshape(len(x_BD), -1)
        return cost_BP

    return in_blocks(block_costs, x_ND)


def nearest_paths(x_ND: np.ndarray, centres: Centres) -> np.ndarray:
    """The path of least cost of each document: int64 [N]. It is the nearest centre of each
    part, so K + K distances are enough for K * K paths. Ties go to the first.

    This holds only without prices: a price belongs to a path, not to a part.
    """
    ends = np.cumsum([centre_KD.shape[1] for centre_KD in centres])[:-1]

    def block_paths(x_BD: np.ndarray) -> np.ndarray:
        path_B = np.zeros(len(x_BD), np.int64)
        for part_BD, centre_KD in zip(np.split(x_BD, ends, axis=1), centres, strict=True):
            cost_BK = _squared_distances(part_BD, centre_KD.astype(np.float64))
            path_B = path_B * len(centre_KD) + cost_BK.argmin(axis=1)
        return path_B[:, None]

    return in_blocks(block_paths, x_ND)[:, 0]


def fit_centres(
    x_ND: np.ndarray,
    choices: Sequence[int],
    *,
    floor: float,
    capacity: float | None,
    seed: int,
    restarts: int = RESTARTS,
    iterations: int = ITERATIONS,
) -> tuple[Centres, np.ndarray]:
    """The best of several restarts: centres of each part, and the price of each path.

    Args:
      choices: centres in each part. The vector is cut in as many parts, of nearly equal size.
      floor, capacity: as in `RoutingConfig`.
      restarts: fits from other centres. The lowest objective is kept.
      iterations: most iterations of each restart.

    Returns:
      (centres, float64 [P] prices), P being the product of the choices.
    """
    parts = np.array_split(x_ND, len(choices), axis=1)
    least, most = bounds(len(x_ND), math.prod(choices), floor, capacity)
    fits = []
    for restart in range(restarts):
        seeds = np.random.SeedSequence([seed, restart]).generate_state(len(choices))
        centres = tuple(
            kmeans(part_ND, k, seed=int(part_seed), iterations=iterations).centres_KD
            for part_ND, k, part_seed in zip(parts, choices, seeds, strict=True)
        )
        fits.append(_balance(x_ND, parts, centres, least, most, iterations))
    _, centres, price_P = min(fits, key=lambda fit: fit[0])
    return centres, price_P


def _balance(
    x_ND: np.ndarray,
    parts: Sequence[np.ndarray],
    centres: Centres,
    least: int,
    most: int,
    iterations: int,
) -> tuple[float, Centres, np.ndarray]:
    """Prices, assignment, means, and again: the best (objective, centres, prices)."""
    choices = tuple(len(centre_KD) for centre_KD in centres)
    rows = np.arange(len(x_ND))
    best = None
    for _ in range(iterations):
        cost_NP = path_costs(x_ND, centres)
        price_P = balancing_prices(cost_NP, least, most)
        path_N = (cost_NP + price_P).argmin(axis=1)
        objective = float(cost_NP[rows, path_N].sum())
        if best is not None and objective >= best[0] * (1 - SETTLED):
            break
        best = (objective, centres, price_P)
        expert_of_parts = np.unravel_index(path_N, choices)
        centres = tuple(map(_means, parts, expert_of_parts, centres))
    assert best is not None
    return best


def _means(x_ND: np.ndarray, nearest_N: np.ndarray, centres_KD: np.ndarray) -> np.ndarray:
    """The mean of each centre's documents. A centre without any stays."""
    moved_KD = centres_KD.copy()
    for cluster in np.unique(nearest_N):
        moved_KD[cluster] = x_ND[nearest_N == cluster].mean(axis=0)
    return moved_KD


def _squared_distances(x_BD: np.ndarray, centres_KD: np.ndarray) -> np.ndarray:
    square_B, square_K = (x_BD**2).sum(axis=1), (centres_KD**2).sum(axis=1)
    return np.maximum(square_B[:, None] - 2 * x_BD @ centres_KD.T + square_K, 0.0)
