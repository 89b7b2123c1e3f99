"""One inner step: gradient by hand, gradient accumulation, a batch without targets."""

import dataclasses

import jax
import numpy as np
import pytest

from dipaco.inner import optimizer
from dipaco.inner.optimizer import make_optimizer
from dipaco.inner.state import fresh
from dipaco.inner.step import make_step


def stepped(loss_fn, settings, parts, batch, rate=0.1):
    state = fresh(jax.tree.map(jax.numpy.copy, parts), make_optimizer(settings))
    state, metrics = make_step(loss_fn, settings)(state, batch, np.float32(rate))
    return jax.device_get(state), jax.device_get(metrics)


def test_loss_and_gradient_are_means_over_the_targets(loss_fn, settings, parts, monkeypatch):
    monkeypatch.setattr(optimizer, "EPSILON", 1.0)
    settings = dataclasses.replace(settings, weight_decay=0.0)
    batch = {
        "x": np.array([[1, 0], [0, 1], [1, 0], [9, 9]], np.float32),
        "y": np.array([[0.5], [-0.5], [0.5], [0]], np.float32),
        "weight": np.array([[1], [1], [1], [0]], np.float32),
    }
    state, metrics = stepped(loss_fn, settings, parts, batch)
    # Errors are 1.5 - 0.5 = 1, -1.5 + 0.5 = -1 and 1 again; gradients are means of 2 error x.
    kernel, bias = np.array([4 / 3, -2 / 3]), np.array([2 / 3])
    assert metrics.loss == pytest.approx(1.0)
    assert metrics.targets == 3
    assert metrics.gradient_norm == pytest.approx(np.sqrt((16 + 4 + 4) / 9))
    for name, gradient in (("kernel", kernel), ("bias", bias)):
        expected = np.ravel(parts["w"][name]) - 0.1 * gradient / (abs(gradient) + 1.0)
        np.testing.assert_allclose(np.ravel(state.parts["w"][name]), expected, rtol=1e-6)
    assert state.step == 1


@pytest.mark.parametrize("pieces", [2, 4, 8])
def test_a_batch_in_pieces_steps_as_the_whole_though_pieces_count_unequally(
    loss_fn, settings, parts, batches, pieces, monkeypatch
):
    monkeypatch.setattr(optimizer, "EPSILON", 1.0)
    batch = next(batches())
    assert 0 < batch["weight"].sum() < 8
    in_pieces = dataclasses.replace(settings, accumulation_steps=pieces)
    whole, of_whole = stepped(loss_fn, settings, parts, batch)
    pieced, of_pieces = stepped(loss_fn, in_pieces, parts, batch)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), pieced, whole)
    np.testing.assert_allclose(of_pieces, of_whole, rtol=1e-5)


@pytest.mark.parametrize("pieces", [1, 2])
def test_a_batch_without_any_target_moves_nothing_but_the_decay(
    loss_fn, settings, parts, batches, pieces
):
    settings = dataclasses.replace(settings, accumulation_steps=pieces)
    batch = next(batches()) | {"weight": np.zeros((8, 1), np.float32)}
    state, metrics = stepped(loss_fn, settings, parts, batch)
    assert (metrics.loss, metrics.gradient_norm, metrics.targets) == (0, 0, 0)
    np.testing.assert_array_equal(state.parts["w"]["bias"], parts["w"]["bias"])
    np.testing.assert_allclose(
        state.parts["w"]["kernel"], parts["w"]["kernel"] * (1 - 0.1 * 0.1), rtol=1e-6
    )


def test_the_rate_is_an_argument_so_one_program_serves_every_schedule(
    loss_fn, settings, parts, batches
):
    step = make_step(loss_fn, settings)
    for rate in (0.1, 0.2, 0.0):
        state = fresh(jax.tree.map(jax.numpy.copy, parts), make_optimizer(settings))
        step(state, next(batches()), np.float32(rate))
    assert step._cache_size() == 1  # ty: ignore[unresolved-attribute]
