"""Rows of tokens that a path's shard does not have do not move where the batch says so."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from dipaco.inner.absent import PRESENT
from dipaco.inner.config import InnerSettings
from dipaco.inner.optimizer import make_optimizer
from dipaco.inner.state import fresh
from dipaco.inner.step import make_step, path_loss
from dipaco.model.config import ModelConfig
from dipaco.model.spec import initialise

TOKENS = 14
MODEL = ModelConfig(vocab_size=TOKENS, d_model=8, num_layers=1, num_heads=2, d_ff=12, max_length=8)
INNER = InnerSettings(steps=2, batch_size=4, learning_rate=0.1, warmup_steps=1, clip_norm=0.5)
PRESENT_V = np.isin(np.arange(TOKENS), [0, 2, 3, 5, 8, 9])
EVERY_V = np.ones(TOKENS, bool)
RATE = np.float32(0.1)


def batch_of(present_V, seed=0):
    """Rows of tokens that the shard has, the last column padding; a row of one token."""
    rng = np.random.default_rng(seed)
    tokens_BT = rng.choice(np.flatnonzero(PRESENT_V), (4, 8)).astype(np.int32)
    segments_BT = np.ones((4, 8), np.int32)
    segments_BT[:, 7] = segments_BT[3, 1:] = 0
    tokens_BT[segments_BT == 0] = 1  # padding may be a token that the shard does not have
    positions_BT = np.broadcast_to(np.arange(8, dtype=np.int32), (4, 8))
    batch = {"tokens": tokens_BT, "segments": segments_BT, "positions": positions_BT}
    return batch if present_V is None else {**batch, PRESENT: present_V}


@functools.cache
def parts_of(model=MODEL):
    return jax.device_get(initialise(model, jax.random.key(0)))


def gradient_of(batch):
    loss_fn = jax.jit(jax.value_and_grad(path_loss(MODEL, INNER), has_aux=True))
    (loss, _), gradient = loss_fn(parts_of(), batch)
    return float(loss), jax.device_get(gradient)


def begun(parts):
    """A path at its first step; its parameters are its own, since a step gives its state up."""
    return fresh(jax.tree.map(jax.numpy.array, parts), make_optimizer(INNER))


@functools.cache
def step_of(model=MODEL, **inner):
    settings = dataclasses.replace(INNER, **inner)
    return make_step(path_loss(model, settings), settings)


def two_steps(present_V, seed=0, model=MODEL, **inner):
    state = begun(parts_of(model))
    for number in range(2):
        batch = batch_of(present_V, seed + number)
        state, metrics = step_of(model, **inner)(state, batch, RATE)
    return jax.device_get(state), float(metrics.loss)


def assert_close(tree, other):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), tree, other)


def test_frozen_rows_do_not_move_and_others_move_as_if_the_rest_had_no_gradient():
    before, (state, _) = parts_of(), two_steps(PRESENT_V)
    moved_VD = state.parts["embed"]["table"] != before["embed"]["table"]
    moved_DV = state.parts["head"]["kernel"] != before["head"]["kernel"]
    np.testing.assert_array_equal(moved_VD.all(axis=1), PRESENT_V)
    np.testing.assert_array_equal(moved_VD.any(axis=1), PRESENT_V)
    np.testing.assert_array_equal(moved_DV.all(axis=0), PRESENT_V)
    np.testing.assert_array_equal(moved_DV.any(axis=0), PRESENT_V)
    for moment in jax.tree.leaves(state.optimizer):  # AdamW has seen nothing of them
        if moment.shape == (MODEL.d_model, TOKENS):
            assert not moment[:, ~PRESENT_V].any()
            assert moment[:, PRESENT_V].any()
    # They stay in the softmax: the first loss is the plain one.
    first, of_first = gradient_of(batch_of(None))
    metrics = step_of()(begun(before), batch_of(PRESENT_V), RATE)[1]
    assert float(metrics.loss * metrics.targets) == pytest.approx(first, rel=1e-6)
    # The whole gradient is clipped without them.
    of_head = of_first["head"]["kernel"]
    plain = step_of()(begun(before), batch_of(None), RATE)[1]
    left_out = np.square(of_head[:, ~PRESENT_V] / float(plain.targets)).sum()
    assert float(metrics.gradient_norm) ** 2 == pytest.approx(
        float(plain.gradient_norm) ** 2 - left_out, rel=1e-4
    )


def test_a_shard_with_all_tokens_trains_as_a_batch_that_does_not_say():
    expected, loss = two_steps(None)
    with_all, of_all = two_steps(EVERY_V)
    assert_close(with_all.parts, expected.parts)
    assert of_all == pytest.approx(loss, rel=1e-5)


def test_a_permutation_of_the_tokens_permutes_the_result():
    order = np.random.default_rng(3).permutation(TOKENS)  # new number -> old
    number_V = np.argsort(order)
    parts = parts_of()
    permuted = {
        **parts,
        "embed": {"table": parts["embed"]["table"][order]},
        "head": {"kernel": parts["head"]["kernel"][:, order]},
    }
    batch = batch_of(PRESENT_V)
    renamed = {**batch, "tokens": number_V[batch["tokens"]].astype(np.int32)}
    step = step_of()
    got, expected = (
        jax.device_get(step(begun(of), {**rows, PRESENT: present_V}, RATE)[0].parts)
        for of, rows, present_V in (
            (permuted, renamed, PRESENT_V[order]),
            (parts, batch, PRESENT_V),
        )
    )
    assert_close(got["head"]["kernel"], expected["head"]["kernel"][:, order])
    assert_close(got["embed"]["table"], expected["embed"]["table"][order])
    assert_close(got["block_00"], expected["block_00"])


@pytest.mark.slow
def test_ways_to_save_memory_give_the_same_steps():
    whole, loss = two_steps(PRESENT_V)
    saving = {"loss_chunks": 2, "accumulation_steps": 2, "rematerialise": True}
    saved, of_saved = two_steps(PRESENT_V, **saving)
    assert of_saved == pytest.approx(loss, rel=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), saved.parts, whole.parts)


def test_a_tied_head_has_rows_alone():
    tied = dataclasses.replace(MODEL, tied_head=True)
    state, _ = two_steps(PRESENT_V, model=tied)
    moved_VD = state.parts["embed"]["table"] != parts_of(tied)["embed"]["table"]
    np.testing.assert_array_equal(moved_VD.any(axis=1), PRESENT_V)
