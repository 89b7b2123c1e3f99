"""Splitmix64: integers that look random, the same on every machine and with every library version.

Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014), with
Vigna's constants. Not NumPy's generators: their streams may change between versions, and the splits
and row plans that follow from these numbers must not.
"""

import numpy as np


def splitmix(numbers: np.ndarray, seed: int) -> np.ndarray:
    """[N] integers -> [N] uint64."""
    start = (seed * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    mixed = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(start)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
