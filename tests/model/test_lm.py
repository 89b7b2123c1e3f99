"""What a language model does with any weights: causality, packing, two precisions."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.interpreters.partial_eval import dce_jaxpr

from dipaco.model import attention, kernels, layers, lm, loss, splash
from dipaco.model.config import MeshConfig
from dipaco.model.lm import hidden_states, training_loss
from dipaco.model.sharding import batch_sharding, make_mesh
from tests.model.conftest import GROUPED, TIED, TINY, lively

forward = jax.jit(lm.forward, static_argnums=0)


def test_no_logit_depends_on_a_later_token(tokens_BT):
    """By gradient: of position 5's logits, with respect to what is embedded at each position."""
    parts = lively(GROUPED)
    rows = parts["embed"]["table"][tokens_BT]
    config = dataclasses.replace(GROUPED, vocab_size=tokens_BT.size)

    def at_five(rows):
        # Each position gets a table row of its own, so the table's gradient is by position.
        table = {"table": rows.reshape(-1, config.d_model)}
        own = np.arange(tokens_BT.size, dtype=np.int32).reshape(tokens_BT.shape)
        x_BTD = hidden_states(config, {**parts, "embed": table}, own)
        return jnp.sum(jnp.square(x_BTD[:, 5]))

    by_position = jnp.abs(jax.jit(jax.grad(at_five))(rows)).max(axis=(0, 2))
    assert np.all(by_position[6:] == 0)
    assert np.all(by_position[:6] > 0)


def test_packed_rows_equal_documents_one_by_one(tokens_BT):
    """Each document by itself is the beginning of a row: nothing depends on what follows it."""
    parts, lengths = lively(GROUPED), (5, 1, 4)
    alone, _ = forward(GROUPED, parts, tokens_BT)
    documents = [row[:n] for row, n in zip(tokens_BT, lengths, strict=True)]
    row = np.concatenate([*documents, np.zeros(2, np.int32)])[None]
    segments = np.array([[1] * 5 + [2] + [3] * 4 + [0] * 2], np.int32)
    positions = np.array([[0, 1, 2, 3, 4, 0, 0, 1, 2, 3, 0, 1]], np.int32)
    expected = np.concatenate([logits[:n] for logits, n in zip(alone, lengths, strict=True)])
    for given in (positions, None):
        packed, _ = forward(GROUPED, parts, row, segments=segments, positions=given)
        np.testing.assert_allclose(packed[0, :10], expected, atol=2e-5)


def test_bfloat16_stays_close_to_float32(config, parts, tokens_BT):
    full, _ = forward(config, parts, tokens_BT)
    rounded, _ = forward(_mixed(config), parts, tokens_BT)
    assert rounded.dtype == jnp.float32
    assert 0 < np.linalg.norm(full - rounded) < 0.02 * np.linalg.norm(full)


@pytest.mark.parametrize(
    "config", [GROUPED, pytest.param(TIED, marks=pytest.mark.slow)], ids=["grouped", "tied"]
)
def test_bfloat16_gradients_are_float32_and_close_also_where_results_are_rounded(
    config, parts, tokens_BT
):
    mixed = _mixed(config)
    kept = dataclasses.replace(mixed, result_dtype="bfloat16")
    exact, whole, rounded = (
        jax.tree.leaves(_loss_and_gradients(parts, each, tokens_BT)[1])
        for each in (config, mixed, kept)
    )
    distances = []
    for a, b, c in zip(exact, whole, rounded, strict=True):
        assert b.dtype == c.dtype == jnp.float32
        assert not np.array_equal(b, c)
        distances.append([np.linalg.norm(a - b), np.linalg.norm(a - c)] / np.linalg.norm(a))
        assert distances[-1][0] < 0.1
    of_whole, of_rounded = np.mean(distances, axis=0)
    assert of_rounded < 2 * of_whole


def test_gradients_written_by_hand_equal_those_of_jax(monkeypatch, config, parts, tokens_BT):
    ours = _loss_and_gradients(parts, config, tokens_BT)
    plain_sum = attention._weighted_sum.__wrapped__
    plain_dense = layers.dense.__wrapped__
    monkeypatch.setattr(attention, "_weighted_sum", plain_sum)
    for module in (attention, layers, lm):
        monkeypatch.setattr(module, "dense", plain_dense)
    monkeypatch.setattr(loss, "summed_loss", loss.summed_loss.__wrapped__)
    _assert_close(_compiled_anew(parts, config, tokens_BT), ours)


def test_queries_in_blocks_attend_as_in_one_product(monkeypatch, tokens_BT):
    parts = lively(GROUPED)
    at_once = _loss_and_gradients(parts, GROUPED, tokens_BT)
    monkeypatch.setattr(attention, "LEAST_BLOCK", 5)  # 12 tokens: blocks of 5, 5 and 2
    _assert_close(_compiled_anew(parts, GROUPED, tokens_BT), at_once)


@pytest.mark.parametrize(("config", "chunks"), [(GROUPED, 3), (TIED, 12)], ids=["grouped", "tied"])
def test_saving_memory_changes_no_loss_and_no_gradient(config, parts, tokens_BT, chunks):
    plain = _loss_and_gradients(parts, config, tokens_BT)
    saving = {"loss_chunks": chunks, "rematerialise": True}
    _assert_close(_loss_and_gradients(parts, config, tokens_BT, **saving), plain)


@pytest.mark.parametrize("config", [GROUPED, TIED], ids=["grouped", "tied"])
def test_logits_that_stay_on_a_chip_change_no_loss_and_no_gradient(
    monkeypatch, config, parts, tokens_BT
):
    plain = _loss_and_gradients(parts, config, tokens_BT)
    head_bytes = 4 * config.vocab_size * config.d_model
    monkeypatch.setattr(kernels, "ON_CHIP", {jax.devices()[0].device_kind: 2 * head_bytes})
    monkeypatch.setattr(lm, "LOGITS_TOKENS", 2 * len(tokens_BT))
    cut = []
    monkeypatch.setattr(
        lm, "LogitsPieces", lambda *given: cut.append(given) or loss.LogitsPieces(*given)
    )
    _assert_close(_compiled_anew(parts, config, tokens_BT, loss_chunks=2), plain)
    assert set(cut) == {(3, "float32")}  # of six columns, two at a time
    mesh = batch_sharding(make_mesh(MeshConfig(data=2, tensor=2)))
    assert lm._pieces(config, (2 * len(tokens_BT), 12), 2, mesh).number == 3
    assert lm._pieces(dataclasses.replace(config, vocab_size=65), tokens_BT.shape, 2, None) is None


def test_what_fills_a_row_changes_no_loss_and_no_gradient(config, parts, tokens_BT):
    """So the filler may be any token, also the one that ends texts: both are id 0."""
    filled = [tokens_BT.copy(), tokens_BT.copy()]
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


def test_a_rematerialised_block_computes_attention_in_a_kernel_once(monkeypatch, tokens_BT):
    """Two kernels: forward, and of the gradient. Gradients are those of the plain step, and of
    attention without a kernel, also on a mesh. Three rows on a device are no multiple of a piece.
    """
    interpreted = functools.partial(splash.attend_on_tpu, is_interpreted=True)
    monkeypatch.setattr(splash, "attend_on_tpu", interpreted)
    changes = {"compute_dtype": "bfloat16", "attention_kernel": "splash", "num_layers": 2}
    config = dataclasses.replace(GROUPED, **changes)
    parts, tokens_BT = lively(config), np.concatenate([tokens_BT, tokens_BT[:, ::-1]])
    monkeypatch.setattr(lm, "PIECE_TOKENS", 2 * tokens_BT.shape[1])
    segments = np.sort(tokens_BT % 3, axis=1)
    positions = np.broadcast_to(np.arange(segments.shape[1]), segments.shape)

    def gradient(config, again, sharding=None):
        def total(parts):
            rows = tokens_BT, segments, positions
            saving = {"rematerialise": again, "rows_sharding": sharding}
            return training_loss(config, parts, *rows, **saving)[0]

        return jax.jit(jax.grad(total)).trace(parts)

    traced = gradient(config, True)
    needed, _ = dce_jaxpr(traced.jaxpr.jaxpr, [True] * len(traced.jaxpr.out_avals))
    assert str(needed).count("pallas_call[") == 2
    plain = dataclasses.replace(config, attention_kernel="plain")
    mesh = batch_sharding(make_mesh(MeshConfig(data=2, tensor=2)))
    others = (gradient(config, False), 0.01), (gradient(plain, False), 0.1)
    for each, tolerance in (*others, (gradient(config, True, mesh), 0.01)):
        got, wanted = (
            np.concatenate(
                [np.ravel(leaf) for leaf in jax.tree.leaves(one.lower().compile()(parts))]
            )
            for one in (traced, each)
        )
        assert np.linalg.norm(got - wanted) < tolerance * np.linalg.norm(wanted)


@functools.partial(jax.jit, static_argnames=("config", "loss_chunks", "rematerialise"))
def _loss_and_gradients(parts, config, tokens_BT, **saving):
    return jax.value_and_grad(_summed)(parts, config, tokens_BT, **saving)


def _compiled_anew(parts, config, tokens_BT, **saving):
    """As a new function, or `jit` would find what it compiled before."""
    return jax.jit(jax.value_and_grad(lambda parts: _summed(parts, config, tokens_BT, **saving)))(
        parts
    )


def _assert_close(ours, theirs):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), ours, theirs)


def _mixed(config):
    return dataclasses.replace(config, compute_dtype="bfloat16")
