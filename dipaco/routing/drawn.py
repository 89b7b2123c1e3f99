"""Paths drawn at random: shards that are all alike, as machines in lock-step have them.

A document of a corpus is dealt out by its number, so that shards are equal to one document. A
prompt has no number: its path is drawn by its features, and equal prompts get equal paths.
"""

import numpy as np
import xxhash

from dipaco.data.splits import splitmix


def deal(documents_N: np.ndarray, num_paths: int, num_choices: int, seed: int) -> np.ndarray:
    """Shuffles documents by a seed and deals them out, like cards.

    Returns:
      int32 [N, num_choices]. Every path is given each choice equally often, but for one document.
    """
    rank_N = np.empty(len(documents_N), np.int64)
    rank_N[np.lexsort((documents_N, splitmix(documents_N, seed)))] = np.arange(len(documents_N))
    return ((rank_N[:, None] + np.arange(num_choices)) % num_paths).astype(np.int32)


def drawn_costs(features_ND: np.ndarray, num_paths: int, seed: int) -> np.ndarray:
    """Features [N, D] -> float64 [N, P], uniform in [0, 1), drawn by each row's bytes."""
    rows = np.ascontiguousarray(features_ND, np.float32)
    hashes = (xxhash.xxh3_64_intdigest(row.tobytes(), seed) for row in rows)
    hash_N = np.fromiter(hashes, np.uint64, len(rows))
    return np.stack([splitmix(hash_N, path) for path in range(num_paths)], axis=1) / 2.0**64
