"""AdamW by hand, and the learning rates of a whole path."""

import jax.numpy as jnp
import numpy as np
import pytest

from dipaco.errors import BadSetting
from dipaco.inner import optimizer
from dipaco.inner.config import InnerSettings
from dipaco.inner.optimizer import adamw, learning_rates

SCHEDULE = InnerSettings(learning_rate=2.0, warmup_steps=4, end_fraction=0.1)


@pytest.mark.parametrize("total", [100, 700])
def test_a_rate_is_the_same_bits_however_many_are_asked_for(total):
    """One alone came out otherwise than among others: a path that had one step left of its phase
    when it was stopped went on with another last bit.
    """
    settings = InnerSettings(learning_rate=1e-3, warmup_steps=total // 20)
    whole = learning_rates(settings, total, 0, total)
    for count in (1, 2, 3, 7):
        for start in range(0, total - count + 1, total // 33):
            asked = learning_rates(settings, total, start, count)
            np.testing.assert_array_equal(asked, whole[start : start + count])


def test_the_rate_rises_in_equal_steps_to_the_peak_and_falls_as_a_cosine_to_the_end():
    rates = learning_rates(SCHEDULE, total_steps=12, start=0, count=12)
    np.testing.assert_allclose(rates[:4], [0.5, 1.0, 1.5, 2.0])
    np.testing.assert_allclose(rates[7], (2.0 + 0.2) / 2, rtol=1e-6)  # half-way down
    np.testing.assert_allclose(rates[-1], 0.2, rtol=1e-6)
    assert (np.diff(rates[3:]) < 0).all()
    assert rates.dtype == np.float32


def test_no_steps_have_no_rates_even_without_room_for_a_warm_up():
    assert learning_rates(SCHEDULE, 0, 0, 0).shape == (0,)


def test_without_a_warm_up_the_path_starts_from_the_peak():
    settings = InnerSettings(learning_rate=2.0, warmup_steps=0, end_fraction=0.0)
    rates = learning_rates(settings, 4, 0, 4)
    np.testing.assert_allclose(rates, 1 + np.cos(np.pi * np.arange(1, 5) / 4), atol=1e-6)


def test_a_warm_up_as_long_as_the_path_is_refused():
    with pytest.raises(BadSetting, match=r"`inner\.warmup_steps` is 4.*fewer than the 4 steps"):
        learning_rates(SCHEDULE, 4, 0, 1)


def direction(settings, parts, gradients):
    optimizer = adamw(settings)
    state = optimizer.init(parts)
    for gradient in gradients:
        update, state = optimizer.update(gradient, state, parts)
    return update


def test_two_steps_of_adam_by_hand(monkeypatch):
    monkeypatch.setattr(optimizer, "EPSILON", 0.5)
    settings = InnerSettings(weight_decay=0.0, beta1=0.9, beta2=0.95, clip_norm=100.0)
    got = direction(
        settings, {"w": jnp.zeros(1)}, [{"w": jnp.array([2.0])}, {"w": jnp.array([4.0])}]
    )
    mean = (0.9 * 0.1 * 2 + 0.1 * 4) / (1 - 0.9**2)
    square = (0.95 * 0.05 * 2**2 + 0.05 * 4**2) / (1 - 0.95**2)
    np.testing.assert_allclose(got["w"], [mean / (square**0.5 + 0.5)], rtol=1e-6)


def test_the_gradient_is_clipped_as_a_whole(monkeypatch):
    monkeypatch.setattr(optimizer, "EPSILON", 1.0)
    settings = InnerSettings(weight_decay=0.0, clip_norm=1.0)
    parts = {"a": jnp.zeros(1), "b": jnp.zeros(1)}
    got = direction(settings, parts, [{"a": jnp.array([3.0]), "b": jnp.array([-4.0])}])
    np.testing.assert_allclose(got["a"], [0.6 / 1.6], rtol=1e-6)
    np.testing.assert_allclose(got["b"], [-0.8 / 1.8], rtol=1e-6)


def test_matrices_decay_and_norms_do_not():
    settings = InnerSettings(weight_decay=0.1)
    parts = {"matrix": jnp.full((2, 2), 3.0), "norm": jnp.full(2, 3.0)}
    got = direction(settings, parts, [{"matrix": jnp.zeros((2, 2)), "norm": jnp.zeros(2)}])
    np.testing.assert_allclose(got["matrix"], np.full((2, 2), 0.3), rtol=1e-6)
    np.testing.assert_array_equal(got["norm"], np.zeros(2))
