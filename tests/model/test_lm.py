"""What a language model does with any weights: causality, packing, two precisions."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dipaco.model import attention, layers, lm, loss
from dipaco.model.lm import hidden_states, training_loss
from dipaco.model.loss import next_token_loss
from tests.model.conftest import TINY, lively

GROUPED = dataclasses.replace(TINY, num_kv_heads=2, head_dim=6, qk_norm=True)
TIED = dataclasses.replace(TINY, tied_head=True)

forward = jax.jit(lm.forward, static_argnums=0)


def test_no_logit_depends_on_a_later_token(config, parts, tokens_BT):
    """By gradient: of position 5's logits, with respect to what is embedded at each position."""
    rows = parts["embed"]["table"][tokens_BT]
    config = dataclasses.replace(config, vocab_size=tokens_BT.size)

    def at_five(rows):
        # Each position gets a table row of its own, so the table's gradient is by position.
        table = {"table": rows.reshape(-1, config.d_model)}
        own = np.arange(tokens_BT.size, dtype=np.int32).reshape(tokens_BT.shape)
        x_BTD = hidden_states(config, {**parts, "embed": table}, own)
        return jnp.sum(jnp.square(x_BTD[:, 5]))

    by_position = jnp.abs(jax.jit(jax.grad(at_five))(rows)).max(axis=(0, 2))
    assert np.all(by_position[6:] == 0)
    assert np.all(by_position[:6] > 0)


def test_packed_rows_equal_documents_one_by_one(config, parts):
    rng = np.random.default_rng(2)
    documents = [rng.integers(0, config.vocab_size, (1, n), np.int32) for n in (5, 1, 4)]
    row = np.concatenate([*documents, np.zeros((1, 2), np.int32)], axis=1)
    segments = np.array([[1] * 5 + [2] + [3] * 4 + [0] * 2], np.int32)
    positions = np.array([[0, 1, 2, 3, 4, 0, 0, 1, 2, 3, 0, 1]], np.int32)
    alone = np.concatenate([forward(config, parts, document)[0] for document in documents], axis=1)
    for given in (positions, None):
        packed, _ = forward(config, parts, row, segments=segments, positions=given)
        np.testing.assert_allclose(packed[:, :10], alone, atol=2e-5)


@pytest.mark.parametrize("config", [GROUPED, TIED], ids=["grouped", "tied"])
def test_bfloat16_stays_close_to_float32(config, tokens_BT):
    parts = lively(config)
    full, _ = forward(config, parts, tokens_BT)
    rounded, _ = forward(_mixed(config), parts, tokens_BT)
    assert rounded.dtype == jnp.float32
    assert 0 < np.linalg.norm(full - rounded) < 0.02 * np.linalg.norm(full)


@pytest.mark.parametrize(
    "config",
    [pytest.param(GROUPED, id="grouped"), pytest.param(TIED, id="tied", marks=pytest.mark.slow)],
)
def test_bfloat16_gradients_are_float32_and_close(config, tokens_BT):
    parts = lively(config)
    full, rounded = (_gradients(parts, c, tokens_BT) for c in (config, _mixed(config)))
    for a, b in zip(jax.tree.leaves(full), jax.tree.leaves(rounded), strict=True):
        assert b.dtype == jnp.float32
        assert np.linalg.norm(a - b) < 0.1 * np.linalg.norm(a)


@pytest.mark.parametrize(
    "config", [GROUPED, pytest.param(TIED, marks=pytest.mark.slow)], ids=["grouped", "tied"]
)
def test_results_kept_in_bfloat16_are_rounded_and_gradients_of_parameters_are_not(
    config, tokens_BT
):
    parts, mixed = lively(config), _mixed(config)
    kept = dataclasses.replace(mixed, result_dtype="bfloat16")
    exact, whole, rounded = (_gradients(parts, c, tokens_BT) for c in (config, mixed, kept))
    leaves = map(jax.tree.leaves, (exact, whole, rounded))
    distances = []
    for a, b, c in zip(*leaves, strict=True):
        assert c.dtype == jnp.float32
        assert not np.array_equal(b, c)
        distances.append([np.linalg.norm(a - b), np.linalg.norm(a - c)] / np.linalg.norm(a))
    of_whole, of_rounded = np.mean(distances, axis=0)
    assert of_rounded < 2 * of_whole


@pytest.mark.parametrize("config", [GROUPED, TIED], ids=["grouped", "tied"])
def test_gradients_written_by_hand_equal_those_of_jax(monkeypatch, config, tokens_BT):
    parts = lively(config)
    ours = _gradients(parts, config, tokens_BT)
    plain_sum = attention._weighted_sum.__wrapped__
    plain_dense = layers.dense.__wrapped__
    monkeypatch.setattr(attention, "_weighted_sum", plain_sum)
    for module in (attention, layers, lm):
        monkeypatch.setattr(module, "dense", plain_dense)
    monkeypatch.setattr(loss, "summed_loss", loss.summed_loss.__wrapped__)
    # A new function, or `jit` would find what it compiled before.
    theirs = jax.jit(jax.grad(lambda parts: _loss(parts, config, tokens_BT)))(parts)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_queries_in_blocks_attend_as_in_one_product(monkeypatch, tokens_BT):
    parts = lively(GROUPED)
    at_once = _loss_and_gradients(parts, GROUPED, tokens_BT)
    monkeypatch.setattr(attention, "LEAST_BLOCK", 5)  # 12 tokens: blocks of 5, 5 and 2
    _assert_close(_loss_and_gradients(parts, GROUPED, tokens_BT), at_once)


@pytest.mark.parametrize(
    ("config", "saving"),
    [
        (GROUPED, {"rematerialise": True}),
        (GROUPED, {"loss_chunks": 3}),
        (TIED, {"loss_chunks": 12, "rematerialise": True}),
    ],
    ids=["computed again", "chunks", "both, tied"],
)
def test_saving_memory_changes_no_loss_and_no_gradient(config, tokens_BT, saving):
    parts = lively(config)
    plain = _loss_and_gradients(parts, config, tokens_BT)
    _assert_close(_loss_and_gradients(parts, config, tokens_BT, **saving), plain)


@pytest.mark.parametrize("config", [GROUPED, TIED], ids=["grouped", "tied"])
def test_what_fills_a_row_changes_no_loss_and_no_gradient(config, tokens_BT):
    """So the filler may be any token, also the one that ends texts: both are id 0."""
    parts, filled = lively(config), [tokens_BT.copy(), tokens_BT.copy()]
    for row, filler in zip(filled, (0, 7), strict=True):
        row[:, 3] = 0  # in the middle of a segment: a target
        row[:, -1] = filler
    one, other = (_loss_and_gradients(parts, config, row) for row in filled)
    jax.tree.map(np.testing.assert_array_equal, one, other)
    moved = tokens_BT.copy()
    moved[:, 3] = 7
    assert _loss_and_gradients(parts, config, moved)[0] != one[0]


@pytest.mark.slow
def test_settings_that_save_memory_save_it():
    """Bytes of scratch memory that XLA plans for the gradient, at 64 times the vocabulary."""
    config = dataclasses.replace(TINY, vocab_size=4096, num_layers=3, max_length=256)
    tokens_BT = np.zeros((4, 256), np.int32)

    def planned(**saving):
        def gradient(parts):
            return jax.grad(lambda parts: _summed(parts, config, tokens_BT, **saving))(parts)

        compiled = jax.jit(gradient).lower(lively(config)).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    logits = 4 * 256 * 4096 * 4
    chunks, both = planned(loss_chunks=8), planned(loss_chunks=8, rematerialise=True)
    assert planned() > 2 * logits > chunks > both


def _summed(parts, config, tokens_BT, **saving):
    """Of rows of two segments and padding."""
    length = tokens_BT.shape[1]
    segments = np.repeat([[1] * (length - 5) + [2] * 4 + [0]], len(tokens_BT), axis=0)
    positions = np.broadcast_to(np.arange(length, dtype=np.int32), tokens_BT.shape)
    total, count = training_loss(config, parts, tokens_BT, segments, positions, **saving)
    assert count.dtype == jnp.float32
    return 2.0 * total / count


def _loss_and_gradients(parts, config, tokens_BT, **saving):
    return jax.jit(jax.value_and_grad(lambda parts: _summed(parts, config, tokens_BT, **saving)))(
        parts
    )


def _assert_close(ours, theirs):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), ours, theirs)


def _mixed(config):
    return dataclasses.replace(config, compute_dtype="bfloat16")


def _loss(parts, config, tokens_BT):
    segments = np.repeat([[1] * 7 + [2] * 4 + [0]], len(tokens_BT), axis=0)
    logits, _ = lm.forward(config, parts, tokens_BT, segments=segments)
    total, count = next_token_loss(logits, tokens_BT, segments)
    return total / count


_gradients = jax.jit(jax.grad(_loss), static_argnums=1)
