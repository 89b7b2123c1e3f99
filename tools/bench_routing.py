"""How the cost of routing grows: with the documents, and with the paths.

  python tools/bench_routing.py                      1,000,000 feature vectors to 256 paths
  python tools/bench_routing.py --documents 100000
  python tools/bench_routing.py --capacity 1.25      with a price on every path

Features are made up, since they are the base model's business; a router of product k-means is
fitted to some of them, as a run fits it. Assigning takes a chunk at a time, as a run does. Two
curves: seconds by documents at 256 paths, and by paths at a quarter of the documents, each point in
turn, several times; reported is the least, in seconds of the processor (other work only adds). The
exponents are slopes of the logarithms: 1 is linear
in the documents, 0.5 linear in the square root of the paths, and less is better: what is done to a
vector whatever the paths (to bring it on a common footing) is part of it.

Prints both curves, then a line of JSON.
"""

import argparse
import json
import time

import numpy as np

from dipaco.routing.normalise import fit_normaliser
from dipaco.routing.product import fit_centres
from dipaco.routing.router import Router

CHUNK = 16_384  # documents at once, as `runs/routing.py`
SIDES = (4, 8, 16, 32)  # experts of each of two levels
DEFAULT_SIDE = 16


def features(num_documents: int, num_dims: int, seed: int) -> np.ndarray:
    """float32 [documents, dims], in a hundred heaps."""
    centre_KD = np.random.default_rng(0).normal(size=(100, num_dims)).astype(np.float32) * 2
    random = np.random.default_rng(seed)
    noise_ND = random.standard_normal((num_documents, num_dims), np.float32)
    return centre_KD[random.integers(0, len(centre_KD), num_documents)] + noise_ND


def router_of(side: int, num_dims: int, capacity: float | None) -> Router:
    """side x side paths."""
    fitted_on = features(max(4096, 2 * side * side), num_dims, seed=1)
    normaliser = fit_normaliser(fitted_on, "standardise", 2)
    centres, price_P = fit_centres(
        *(normaliser.apply(fitted_on), (side, side)),
        floor=0.0,
        capacity=capacity,
        seed=0,
        restarts=1,
        iterations=5,
    )
    return Router(kind="product_kmeans", normaliser=normaliser, centres=centres, price_P=price_P)


def seconds_to_assign(router: Router, num_documents: int, chunk_ND: np.ndarray) -> float:
    started = time.process_time()
    for start in range(0, num_documents, CHUNK):
        router.assign(chunk_ND[: min(CHUNK, num_documents - start)])
    return time.process_time() - started


def exponent(sizes: list[int], seconds: list[float]) -> float:
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--dims", type=int, default=128, help="of a feature")
    parser.add_argument("--capacity", type=float, default=None, help="bound on a path's documents")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()

    chunk_ND = features(CHUNK, options.dims, seed=2)
    routers = {side: router_of(side, options.dims, options.capacity) for side in SIDES}
    documents = [options.documents // share for share in (8, 4, 2, 1)]
    points = [(DEFAULT_SIDE, count) for count in documents]
    points += [(side, documents[1]) for side in SIDES if side != DEFAULT_SIDE]
    taken: dict[tuple[int, int], list[float]] = {point: [] for point in points}
    for _ in range(options.repeats):
        for side, count in points:
            taken[side, count].append(seconds_to_assign(routers[side], count, chunk_ND))
    least = {point: min(times) for point, times in taken.items()}

    by_documents = [least[DEFAULT_SIDE, count] for count in documents]
    by_paths = [least[side, documents[1]] for side in SIDES]
    print(f"{'documents':>10}  seconds   at {DEFAULT_SIDE**2} paths")
    for count, seconds in zip(documents, by_documents, strict=True):
        print(f"{count:>10,}  {seconds:7.3f}")
    print(f"\n{'paths':>10}  seconds   for {documents[1]:,} documents")
    for side, seconds in zip(SIDES, by_paths, strict=True):
        print(f"{side * side:>10,}  {seconds:7.3f}")
    result = {
        "documents": options.documents,
        "paths": DEFAULT_SIDE**2,
        "dims": options.dims,
        "capacity": options.capacity,
        "seconds": round(by_documents[-1], 3),
        "documents_per_second": round(options.documents / by_documents[-1]),
        "exponent_of_documents": round(exponent(documents, by_documents), 3),
        "exponent_of_paths": round(exponent([side * side for side in SIDES], by_paths), 3),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
