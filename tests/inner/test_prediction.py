"""Where a step whose gradient is not known yet is expected to lead."""

import dataclasses

import jax
import numpy as np
import pytest

from dipaco.algorithm.delayed_updates import delayed_steps
from dipaco.inner.config import InnerSettings
from dipaco.inner.optimizer import make_optimizer
from dipaco.inner.state import fresh
from dipaco.inner.step import make_prediction, make_update

SETTINGS = InnerSettings(batch_size=4, steps=10, weight_decay=0.1, clip_norm=1e6)
RATE = 0.01
UPDATE, PREDICT = make_update(SETTINGS), make_prediction(SETTINGS)
ONES = {"block_00": {"w": np.ones((3, 2), np.float32)}, "final_norm": {"w": np.ones(2, np.float32)}}


def distance(a, b):
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return max(float(np.max(np.abs(x - y))) for x, y in pairs)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_where_the_gradient_stays_as_it_was_the_prediction_is_the_step(optimizer):
    settings = dataclasses.replace(SETTINGS, optimizer=optimizer)
    update, predict = make_update(settings), make_prediction(settings)
    state = fresh(ONES, make_optimizer(settings))
    gradient = jax.tree.map(lambda leaf: 0.5 * leaf, ONES)
    for _ in range(5):
        state = update(state, gradient, RATE)
        assert distance(predict(state, RATE), update(state, gradient, RATE).parts) < 1e-6
        assert distance(predict(state, RATE), state.parts) > RATE / 2


def test_before_the_first_gradient_only_the_decay_is_foreseen():
    predicted = PREDICT(fresh(ONES, make_optimizer(SETTINGS)), RATE)
    np.testing.assert_allclose(predicted["block_00"]["w"], 1 - RATE * 0.1, rtol=1e-6)
    np.testing.assert_array_equal(predicted["final_norm"]["w"], 1)


@pytest.mark.parametrize("rate", [0.01, 0.05])
def test_late_steps_stay_by_plain_ones_twice_as_closely_as_without_a_prediction(rate):
    """Downhill to zero in a bowl."""
    state = fresh(ONES, make_optimizer(SETTINGS))

    def after(delay, predict):
        steps = [(step, rate, delay if step else 0) for step in range(30)]
        taken = delayed_steps(
            state, steps, lambda step, parts: (parts, 0.0), UPDATE, predict=predict
        )
        return [one.parts for one, _ in taken]

    plain = after(0, PREDICT)
    predicted, as_it_was = after(1, PREDICT), after(1, lambda state, rate: state.parts)
    gaps = [
        max(distance(a, b) for a, b in zip(plain, late, strict=True))
        for late in (predicted, as_it_was)
    ]
    assert gaps[0] < gaps[1] / 2
