"""Decisions by hash: the split of a group of documents, and which documents repeat a text.

A hash gives the same answer on every machine, for every run's seed, and with every version of a
library. NumPy's generators do not: their streams may change between versions. The integers that
look random here are splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
generators", 2014, with Vigna's constants).
"""

import numpy as np

# short = too short for tune, test or router
SPLITS = ("train", "tune", "test", "router", "short")
HELD = ("tune", "test")  # settings are chosen by one, results are of the other
HASHES_AT_ONCE = 1 << 20


def splitmix(numbers: np.ndarray, seed: int) -> np.ndarray:
    """[N] integers -> [N] uint64."""
    start = (seed * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    mixed = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(start)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def fractions(hashes: np.ndarray, seed: int) -> np.ndarray:
    """[N] uint64 -> [N] float64 in [0, 1), independent for each seed."""
    return (splitmix(hashes, seed) >> np.uint64(11)) * 2.0**-53


def splits_of_groups(
    groups: np.ndarray, held_fraction: float, router_fraction: float
) -> np.ndarray:
    """[N] uint64 hashes of groups -> [N] uint8, numbers in `SPLITS`."""
    fraction = fractions(groups, seed=0)
    splits = np.full(len(groups), SPLITS.index("train"), dtype=np.uint8)
    splits[fraction < 2 * held_fraction + router_fraction] = SPLITS.index("router")
    splits[fraction < 2 * held_fraction] = SPLITS.index("test")
    splits[fraction < held_fraction] = SPLITS.index("tune")
    return splits


def first_of_each(hashes: np.ndarray) -> np.ndarray:
    """[N] uint64 -> [N] bool: is it the first of its value? In parts by value, to bound memory."""
    is_first = np.zeros(len(hashes), dtype=bool)
    parts = 1 + len(hashes) // HASHES_AT_ONCE
    part_of = hashes % np.uint64(parts) if parts > 1 else np.zeros(len(hashes), dtype=np.uint8)
    for part in range(parts):
        members = np.flatnonzero(part_of == part)
        _, firsts = np.unique(hashes[members], return_index=True)  # the first of equal values
        is_first[members[firsts]] = True
    return is_first
