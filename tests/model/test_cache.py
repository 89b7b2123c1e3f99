"""The cache saves work and changes no logits."""

import jax
import numpy as np

from dipaco.model import lm
from dipaco.model.cache import describe_cache, empty_cache

forward = jax.jit(lm.forward, static_argnums=0)


def test_a_cache_is_as_described(config):
    specs, cache = describe_cache(config, 2, 8), empty_cache(config, 2, 8)
    assert jax.tree.map(lambda spec: spec.shape, specs) == jax.tree.map(lambda x: x.shape, cache)


def test_decoding_with_a_cache_equals_the_full_forward(config, parts, tokens_BT):
    full, _ = forward(config, parts, tokens_BT)
    cache = empty_cache(config, len(tokens_BT), 16)
    first, cache = forward(config, parts, tokens_BT[:, :5], cache=cache)
    logits = [first]
    for t in range(5, tokens_BT.shape[1]):
        one, cache = forward(config, parts, tokens_BT[:, t : t + 1], cache=cache)
        logits.append(one)
    np.testing.assert_allclose(np.concatenate(logits, axis=1), full, atol=2e-5)
    np.testing.assert_array_equal(cache["length"], 12)


def test_rows_of_different_lengths_continue_from_their_own_ends(config, parts, tokens_BT):
    lengths = np.array([3, 7, 1])
    is_token = (np.arange(8)[None] < lengths[:, None]).astype(np.int32)
    cache = empty_cache(config, 3, 16)
    _, cache = forward(config, parts, tokens_BT[:, :8], segments=is_token, cache=cache)
    next_token = tokens_BT[np.arange(3), lengths][:, None]
    step, _ = forward(config, parts, next_token, cache=cache)
    for row, length in enumerate(lengths):
        alone, _ = forward(config, parts, tokens_BT[row : row + 1, : length + 1])
        np.testing.assert_allclose(step[row, 0], alone[0, -1], atol=2e-5)
