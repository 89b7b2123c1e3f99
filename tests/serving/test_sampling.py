"""Sampling: what may be drawn, and how often."""

import jax
import numpy as np
import pytest

from dipaco.errors import BadSampling
from dipaco.serving.sampling import SamplingSettings, sample

LOGITS = np.log(np.array([0.1, 0.4, 0.2, 0.3], np.float32))
NUM_DRAWS = 2000


@jax.jit
def _draw_many(temperature, top_k, top_p):
    keys = jax.random.split(jax.random.key(0), NUM_DRAWS)
    return jax.vmap(lambda key: sample(LOGITS, key, temperature, top_k, top_p))(keys)


def _shares(temperature=1.0, top_k=0, top_p=1.0):
    tokens = _draw_many(np.float32(temperature), np.int32(top_k), np.float32(top_p))
    return np.bincount(tokens, minlength=4) / NUM_DRAWS


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"temperature": 0.0}, [0, 1, 0, 0]),
        ({}, [0.1, 0.4, 0.2, 0.3]),
        ({"temperature": 0.5}, [1 / 30, 16 / 30, 4 / 30, 9 / 30]),
        ({"top_k": 1}, [0, 1, 0, 0]),
        ({"top_k": 2}, [0, 4 / 7, 0, 3 / 7]),
        ({"top_k": 9}, [0.1, 0.4, 0.2, 0.3]),
        ({"top_p": 0.39}, [0, 1, 0, 0]),
        ({"top_p": 0.6}, [0, 4 / 7, 0, 3 / 7]),
        ({"top_k": 3, "top_p": 0.5}, [0, 4 / 7, 0, 3 / 7]),
    ],
    ids=str,
)
def test_tokens_are_drawn_as_often_as_they_should(settings, expected):
    shares = _shares(**settings)
    np.testing.assert_allclose(shares, expected, atol=0.04)
    np.testing.assert_array_equal(shares == 0, np.array(expected) == 0)


@pytest.mark.parametrize("bad", [{"temperature": -1.0}, {"top_k": -1}, {"top_p": 0.0}])
def test_settings_that_cannot_be_are_named(bad):
    with pytest.raises(BadSampling, match=next(iter(bad))):
        SamplingSettings(**bad)
