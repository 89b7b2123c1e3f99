"""What a leader counts of a block is what its gradient says."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.swarm_rig import BATCH, COMPUTE, LENGTH, first_state


@settings(max_examples=5)
@given(st.integers(0, 2**32 - 1))
def test_the_targets_that_a_leader_counts_are_those_of_the_loss(seed):
    rng = np.random.default_rng(seed)
    segments = np.sort(rng.integers(0, 4, (BATCH, LENGTH), dtype=np.int32), axis=1)
    segments[rng.random(BATCH) < 0.3] = 0  # rows of padding
    batch = {
        "tokens": rng.integers(0, 64, (BATCH, LENGTH), dtype=np.int32),
        "segments": segments,
        "positions": np.zeros((BATCH, LENGTH), np.int32),
    }
    parts = first_state().parts
    counted = COMPUTE.targets_of_blocks(batch)
    said = [COMPUTE.gradient(parts, COMPUTE.rows_of(batch, block), 0)[2] for block in range(8)]
    assert list(counted) == said
