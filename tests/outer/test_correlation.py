"""The cosine between the mean outer gradients of two phases, read off what their steps left."""

import jax
import numpy as np
import pytest

from dipaco import trees
from dipaco.outer import correlation
from dipaco.outer.config import OuterSettings
from dipaco.outer.correlation import ModuleAt, lag_cosine
from dipaco.outer.step import fresh, outer_step

RNG = np.random.default_rng(0)


def module(scale):
    def draw(*shape):
        return scale * RNG.normal(size=shape).astype(np.float32)

    return {"block_00": {"b": {"w": draw(3, 4)}, "a": draw(7)}, "head": {"kernel": draw(4, 5)}}


def copied(tree):
    return jax.tree.map(np.array, tree)


def vector(tree):
    return np.concatenate([leaf.reshape(-1) for _, leaf in trees.flatten(tree)]).astype(np.float64)


def stepped(settings, means):
    """The module before each step, and after the last."""
    theta = module(1.0)
    state = fresh(settings, theta)
    modules = [ModuleAt(copied(theta), copied(state))]
    for mean in means:
        theta, state, _ = outer_step(settings, theta, copied(mean), state, 4)
        modules.append(ModuleAt(copied(theta), copied(state)))
    return modules


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_it_is_that_of_the_means_whatever_the_step_did_with_them(momentum, monkeypatch):
    """Over three steps, so that the momentum holds older means as well."""
    monkeypatch.setattr(correlation, "BLOCK_VALUES", 5)
    settings = OuterSettings(learning_rate=0.7, momentum=momentum)
    means = [module(0.01) for _ in range(4)]
    modules = stepped(settings, means)
    for at in range(3):
        got = lag_cosine(settings, modules[at].parameters, *modules[at + 1 : at + 3])
        one, other = vector(means[at]), vector(means[at + 1])
        expected = one @ other / np.linalg.norm(one) / np.linalg.norm(other)
        assert got == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("factor", [3.0, -0.1])
def test_at_the_ends_it_is_one_and_minus_one(factor):
    settings, mean = OuterSettings(momentum=0.0), module(0.01)
    again = jax.tree.map(lambda leaf: leaf * np.float32(factor), mean)
    first, *others = stepped(settings, [mean, again])
    assert lag_cosine(settings, first.parameters, *others) == pytest.approx(
        np.sign(factor), abs=1e-4
    )


@pytest.mark.parametrize("zero", [0, 1])
def test_there_is_none_with_a_step_that_moved_nothing(zero):
    settings, means = OuterSettings(momentum=0.0), [module(0.01), module(0.01)]
    means[zero] = jax.tree.map(np.zeros_like, means[zero])
    first, *others = stepped(settings, means)
    assert lag_cosine(settings, first.parameters, *others) is None
