"""The cache saves work and changes no logits."""

import jax
import numpy as np

from dipaco.model import lm
from dipaco.model.cache import describe_cache, empty_cache

forward = jax.jit(lm.forward, static_argnums=0)


def test_a_cache_is_as_described(config):
    specs, cache = describe_cache(config, 2, 8), empty_cache(config, 2, 8)
    assert jax.tree.map(lambda spec: spec.shape, specs) == jax.tree.map(lambda x: x.shape, cache)


def test_rows_of_different_lengths_continue_from_their_own_ends_as_in_the_full_forward(
    config, parts, tokens_BT
):
    full, _ = forward(config, parts, tokens_BT)
    lengths, rows = np.array([3, 7, 1]), np.arange(3)
    is_token = (np.arange(8)[None] < lengths[:, None]).astype(np.int32)
    cache = empty_cache(config, 3, 16)
    first, cache = forward(config, parts, tokens_BT[:, :8], segments=is_token, cache=cache)
    for row, length in enumerate(lengths):
        np.testing.assert_allclose(first[row, :length], full[row, :length], atol=2e-5)
    for done in range(5):
        at = lengths + done
        step, cache = forward(config, parts, tokens_BT[rows, at][:, None], cache=cache)
        np.testing.assert_allclose(step[:, 0], full[rows, at], atol=2e-5)
    np.testing.assert_array_equal(cache["length"], lengths + 5)
