"""Documents in known heaps, of unequal size, as the features of a language model are."""

import numpy as np
import pytest


@pytest.fixture(scope="session")
def heaps():
    """heaps(n, seed) -> float32 [n, 24]: six heaps; the largest has nearly half of all."""
    centre_KD = np.random.default_rng(0).normal(size=(6, 24)) * 3

    def draw(num_documents: int, seed: int = 0) -> np.ndarray:
        random = np.random.default_rng(seed)
        heap_N = random.choice(6, size=num_documents, p=[0.45, 0.25, 0.15, 0.08, 0.05, 0.02])
        return (centre_KD[heap_N] + random.normal(size=(num_documents, 24))).astype(np.float32)

    return draw
