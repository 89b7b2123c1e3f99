"""Tokens that a path's shard does not have: out of the softmax, damped, or with rows at rest."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from dipaco.errors import BadSetting
from dipaco.inner.absent import DAMPING, PRESENT
from dipaco.inner.config import InnerSettings
from dipaco.inner.optimizer import adamw
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


@functools.cache
def loss_and_gradient(kind, model):
    loss_fn = path_loss(model, dataclasses.replace(INNER, absent_tokens=kind))
    return jax.jit(jax.value_and_grad(loss_fn, has_aux=True))


def gradient_of(kind, batch, parts=None, model=MODEL):
    parts = parts_of(model) if parts is None else parts
    (loss, targets), gradient = loss_and_gradient(kind, model)(parts, batch)
    return float(loss), float(targets), jax.device_get(gradient)


@functools.cache
def step_of(kind, model=MODEL, **inner):
    settings = dataclasses.replace(INNER, absent_tokens=kind, **inner)
    return make_step(path_loss(model, settings), settings)


def two_steps(kind, present_V, seed=0, model=MODEL, **inner):
    state = fresh(jax.tree.map(jax.numpy.copy, parts_of(model)), adamw(INNER))
    for number in range(2):
        batch = batch_of(present_V, seed + number)
        state, metrics = step_of(kind, model, **inner)(state, batch, RATE)
    return jax.device_get(state), float(metrics.loss)


def assert_close(tree, other):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), tree, other)


@pytest.mark.slow
def test_masked_is_training_with_a_vocabulary_that_has_no_other_tokens():
    batch, parts = batch_of(PRESENT_V), parts_of()
    batch["tokens"] = np.where(batch["segments"] > 0, batch["tokens"], 0)
    loss, targets, gradient = gradient_of("masked", batch)
    number_V = np.cumsum(PRESENT_V) - 1
    fewer = {
        **parts,
        "embed": {"table": parts["embed"]["table"][PRESENT_V]},
        "head": {"kernel": parts["head"]["kernel"][:, PRESENT_V]},
    }
    small = dataclasses.replace(MODEL, vocab_size=int(PRESENT_V.sum()))
    numbered = batch_of(None) | {"tokens": number_V[batch["tokens"]].astype(np.int32)}
    expected, same_targets, of_fewer = gradient_of("plain", numbered, fewer, small)
    assert targets == same_targets > 0
    assert loss == pytest.approx(expected, rel=1e-6)
    head_DV = gradient["head"]["kernel"]
    assert not head_DV[:, ~PRESENT_V].any()
    assert_close(head_DV[:, PRESENT_V], of_fewer["head"]["kernel"])
    assert_close(gradient["embed"]["table"][PRESENT_V], of_fewer["embed"]["table"])
    assert_close(gradient["block_00"], of_fewer["block_00"])


def test_damped_halves_the_logits_of_absent_tokens():
    batch = batch_of(PRESENT_V)
    loss, _, gradient = gradient_of("damped", batch)
    parts = parts_of()
    factor_V = np.where(PRESENT_V, 1.0, DAMPING).astype(np.float32)
    scaled = {**parts, "head": {"kernel": parts["head"]["kernel"] * factor_V}}
    expected, _, of_scaled = gradient_of("plain", batch_of(None), scaled)
    assert loss == pytest.approx(expected, rel=1e-6)
    assert_close(gradient["head"]["kernel"], of_scaled["head"]["kernel"] * factor_V)
    assert_close(gradient["block_00"], of_scaled["block_00"])
    plain, _, _ = gradient_of("plain", batch_of(None))
    assert loss != pytest.approx(plain, rel=1e-4)


def test_frozen_rows_do_not_move_and_others_move_as_if_the_rest_had_no_gradient():
    before, (state, _) = parts_of(), two_steps("frozen", PRESENT_V)
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
    first, _, _ = gradient_of("frozen", batch_of(PRESENT_V))
    assert first == pytest.approx(gradient_of("plain", batch_of(None))[0], rel=1e-6)
    # The whole gradient is clipped without them.
    of_head = gradient_of("plain", batch_of(None))[2]["head"]["kernel"]
    metrics = step_of("frozen")(
        fresh(jax.tree.map(jax.numpy.copy, before), adamw(INNER)), batch_of(PRESENT_V), RATE
    )[1]
    plain = step_of("plain")(
        fresh(jax.tree.map(jax.numpy.copy, before), adamw(INNER)), batch_of(None), RATE
    )[1]
    left_out = np.square(of_head[:, ~PRESENT_V] / float(plain.targets)).sum()
    assert float(metrics.gradient_norm) ** 2 == pytest.approx(
        float(plain.gradient_norm) ** 2 - left_out, rel=1e-4
    )


@pytest.mark.parametrize("kind", ["masked", "damped", "frozen"])
def test_a_shard_with_all_tokens_trains_as_plain_and_so_does_a_batch_that_does_not_say(kind):
    expected, loss = two_steps("plain", None)
    with_all, of_all = two_steps(kind, EVERY_V)
    assert_close(with_all.parts, expected.parts)
    assert of_all == pytest.approx(loss, rel=1e-5)
    # A batch that does not say is not the same numbers only: it is the same program.
    state = jax.eval_shape(lambda: fresh(parts_of(), adamw(INNER)))
    unsaid, plain = (
        str(jax.make_jaxpr(step_of(each))(state, batch_of(None), RATE)) for each in (kind, "plain")
    )
    assert unsaid == plain


@pytest.mark.parametrize("kind", ["masked", "damped", "frozen"])
def test_a_permutation_of_the_tokens_permutes_the_result(kind):
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
    step = step_of(kind)
    got, expected = (
        jax.device_get(
            step(
                fresh(jax.tree.map(jax.numpy.array, of), adamw(INNER)),
                {**rows, PRESENT: present_V},
                RATE,
            )[0].parts
        )
        for of, rows, present_V in (
            (permuted, renamed, PRESENT_V[order]),
            (parts, batch, PRESENT_V),
        )
    )
    assert_close(got["head"]["kernel"], expected["head"]["kernel"][:, order])
    assert_close(got["embed"]["table"], expected["embed"]["table"][order])
    assert_close(got["block_00"], expected["block_00"])


KINDS = ["masked", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("damped", "frozen"))]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_ways_to_save_memory_give_the_same_steps(kind):
    whole, loss = two_steps(kind, PRESENT_V)
    saving = {"loss_chunks": 2, "accumulation_steps": 2, "rematerialise": True}
    saved, of_saved = two_steps(kind, PRESENT_V, **saving)
    assert of_saved == pytest.approx(loss, rel=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), saved.parts, whole.parts)


@pytest.mark.parametrize("kind", KINDS)
def test_a_tied_head_has_rows_alone(kind):
    tied = dataclasses.replace(MODEL, tied_head=True)
    state, _ = two_steps(kind, PRESENT_V, model=tied)
    change_VD = state.parts["embed"]["table"] - parts_of(tied)["embed"]["table"]
    # Twice the decay, and nothing else: an absent token is neither read nor predicted.
    decayed_VD = parts_of(tied)["embed"]["table"] * ((1 - 0.1 * 0.1) ** 2 - 1)
    if kind == "frozen":
        assert not change_VD[~PRESENT_V].any()
    elif kind == "masked":
        assert_close(change_VD[~PRESENT_V], decayed_VD[~PRESENT_V])
    else:
        assert (abs(change_VD - decayed_VD)[~PRESENT_V] > 1e-3).all()


def test_an_unknown_way_is_refused():
    with pytest.raises(BadSetting, match=r"`inner\.absent_tokens`.*plain, masked, damped, frozen"):
        InnerSettings(absent_tokens="dropped")
