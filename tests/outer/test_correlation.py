"""The cosine between the mean outer gradients of two phases, read off what the first step left."""

import jax
import numpy as np
import pytest

from dipaco import trees
from dipaco.outer.config import OuterSettings
from dipaco.outer.correlation import lag_cosine
from dipaco.outer.step import fresh, outer_step

RNG = np.random.default_rng(0)


def module(scale):
    def draw(*shape):
        return scale * RNG.normal(size=shape).astype(np.float32)

    return {"block_00": {"b": {"w": draw(3, 4)}, "a": draw(7)}, "head": {"kernel": draw(4, 5)}}


def copied(tree):
    return jax.tree.map(np.array, tree)


def pieces(tree, size=5):
    for name, leaf in trees.flatten(tree):
        for start in range(0, leaf.size, size):
            yield name, start, leaf.reshape(-1)[start : start + size]


def vector(tree):
    return np.concatenate([leaf.reshape(-1) for _, leaf in trees.flatten(tree)]).astype(np.float64)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_it_is_that_of_the_means_whatever_the_step_did_with_them(momentum):
    """Over three steps, so that the momentum holds older means as well."""
    settings = OuterSettings(learning_rate=0.7, momentum=momentum)
    theta, last = module(1.0), None
    state = fresh(settings, theta)
    earlier = None
    for _ in range(4):
        mean = module(0.01)
        if last is not None:
            got = lag_cosine(settings, pieces(earlier), theta, state, mean)
            one, other = vector(mean), vector(last)
            expected = one @ other / np.linalg.norm(one) / np.linalg.norm(other)
            assert got == pytest.approx(expected, abs=1e-4)
        earlier, last = copied(theta), copied(mean)
        theta, state, _ = outer_step(settings, dict(theta), mean, state, 4)


@pytest.mark.parametrize("factor", [3.0, -0.1])
def test_at_the_ends_it_is_one_and_minus_one(factor):
    settings = OuterSettings(momentum=0.0)
    theta, mean = module(1.0), module(0.01)
    earlier = copied(theta)
    again = jax.tree.map(lambda leaf: leaf * np.float32(factor), mean)
    state = fresh(settings, theta)
    theta, state, _ = outer_step(settings, theta, mean, state, 1)
    got = lag_cosine(settings, pieces(earlier), theta, state, again)
    assert got == pytest.approx(np.sign(factor), abs=1e-4)


def test_there_is_none_with_a_step_that_moved_nothing():
    settings = OuterSettings(momentum=0.0)
    theta, mean = module(1.0), module(0.01)
    state = fresh(settings, theta)
    assert lag_cosine(settings, pieces(theta), theta, state, mean) is None
    zero = jax.tree.map(np.zeros_like, mean)
    assert lag_cosine(settings, pieces(module(1.0)), theta, state, zero) is None
