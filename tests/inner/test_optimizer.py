"""AdamW and Muon by hand, and the learning rates of a whole path."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dipaco.errors import BadSetting
from dipaco.inner import optimizer
from dipaco.inner.config import InnerSettings
from dipaco.inner.optimizer import learning_rates, make_optimizer
from dipaco.inner.state import state_like
from dipaco.model.config import ModelConfig
from dipaco.runs.forecast.traffic import optimizer_bytes

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
    optimizer = make_optimizer(settings)
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


MUON = InnerSettings(optimizer="muon", weight_decay=0.0, clip_norm=100.0)


def test_muon_orthogonalises_the_nesterov_sum_of_each_matrix_of_a_block():
    """In singular values: each is near one, times 0.2 and the root of the longer side."""
    rng = np.random.default_rng(0)
    gradients = [rng.normal(size=(6, 24)).astype(np.float32) for _ in range(3)]
    parts = {"block_00": {"query": jnp.zeros((6, 24))}}
    got = direction(MUON, parts, [{"block_00": {"query": each}} for each in gradients])
    sums = np.zeros((6, 24))
    for gradient in gradients:
        sums = gradient + 0.95 * sums
    left, _, right = np.linalg.svd(gradients[-1] + 0.95 * sums, full_matrices=False)
    of_got = left.T @ np.asarray(got["block_00"]["query"]) @ right.T / (0.2 * 24**0.5)
    np.testing.assert_allclose(of_got, np.diag(np.diag(of_got)), atol=1e-4)
    assert (np.abs(np.diag(of_got) - 0.95) < 0.3).all()


def test_under_muon_norms_embedding_and_head_are_adamws_and_all_matrices_decay():
    settings = dataclasses.replace(MUON, weight_decay=0.1)
    rng = np.random.default_rng(0)
    of_adamw = {"embed": {"table": (8, 4)}, "head": {"kernel": (4, 8)}, "block_00": {"norm": (4,)}}
    shapes = {**of_adamw, "block_00": {"norm": (4,), "query": (4, 4)}}
    parts, gradient = (
        jax.tree.map(
            lambda shape: jnp.asarray(rng.normal(size=shape), jnp.float32),
            shapes,
            is_leaf=lambda leaf: isinstance(leaf, tuple),
        )
        for _ in range(2)
    )
    got, plain = (
        direction(each, parts, [gradient, gradient])
        for each in (settings, dataclasses.replace(settings, optimizer="adamw"))
    )
    muon = got["block_00"].pop("query") - plain["block_00"].pop("query")
    jax.tree.map(np.testing.assert_array_equal, got, plain)
    assert np.abs(muon).max() > 0.1
    no_decay = direction(MUON, parts, [gradient, gradient])["block_00"]["query"]
    got = direction(settings, parts, [gradient, gradient])["block_00"]["query"]
    np.testing.assert_allclose(got - no_decay, 0.1 * parts["block_00"]["query"], atol=1e-6)


def test_muon_keeps_one_value_beside_each_of_a_blocks_matrices_as_the_plan_says():
    model = ModelConfig(vocab_size=16, d_model=8, num_layers=2, num_heads=2, d_ff=16, max_length=8)
    for name in ("adamw", "muon"):
        state = state_like(model, make_optimizer(InnerSettings(optimizer=name)))
        moments = [leaf for leaf in jax.tree.leaves(state.optimizer) if leaf.dtype == jnp.float32]
        assert 4 * sum(leaf.size for leaf in moments) == optimizer_bytes(model, name)
