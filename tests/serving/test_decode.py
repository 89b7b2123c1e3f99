"""The compiled programs of serving: buckets, the pool's shapes, scores of a prompt."""

import dataclasses

import jax
import numpy as np
import pytest

from dipaco.model.inference import prepare
from dipaco.model.lm import forward
from dipaco.serving.decoding import decode
from dipaco.serving.decoding.block_plan import plan_block
from dipaco.serving.decoding.decode import (
    DRAWN,
    buckets,
    decode_block,
    gather_rows,
    make_pool,
    score_prompt,
    smallest_fitting,
)
from dipaco.serving.decoding.sampling import NUM_UNIFORMS, SamplingSettings, stack_settings
from tests.support.serving_rig import CONFIG, random_parts


def test_buckets_are_powers_of_two_up_to_the_largest():
    assert buckets(32, 100) == (32, 64, 100)
    assert buckets(32, 64) == (32, 64)
    assert buckets(32, 16) == (16,)


@pytest.mark.parametrize(("needed", "size"), [(1, 32), (32, 32), (33, 64), (65, 100), (200, 100)])
def test_the_smallest_bucket_that_fits_is_used_or_else_the_largest(needed, size):
    assert smallest_fitting((32, 64, 100), needed) == size


def test_a_pool_has_a_spare_row_and_a_slot_for_every_token_of_the_context():
    shapes = {leaf.shape for leaf in jax.tree.leaves(make_pool(CONFIG, 3))}
    assert shapes == {(4, CONFIG.kv_heads, CONFIG.max_length, CONFIG.head_size)}


def test_a_prompt_is_scored_as_the_full_forward_scores_it():
    parts = random_parts(0)
    tokens = np.random.default_rng(1).integers(0, CONFIG.vocab_size, (1, 64), np.int32)
    block = score_prompt(CONFIG, prepare(CONFIG, parts), tokens)
    logits, _ = forward(CONFIG, parts, tokens)
    logprobs = np.asarray(jax.nn.log_softmax(logits[0]))[:-1]
    expected = logprobs[np.arange(63), tokens[0, 1:]]
    np.testing.assert_allclose(block.logprob[1:, 0], expected, atol=3e-5)
    np.testing.assert_array_equal(block.top_token[1:, 0, 0], logprobs.argmax(axis=1))
    np.testing.assert_allclose(block.top_logprob[1:, 0], -np.sort(-logprobs)[:, :20], atol=3e-5)


def decode_given(config, given_nB, wants_logprobs=False):
    """A block of such rows, each after a token of its own."""
    num_rows, slots = given_nB.shape[1], 32
    history_BS = np.zeros((num_rows, slots), np.int32)
    history_BS[:, 0] = 3 + np.arange(num_rows)
    pool, rows_B = make_pool(config, num_rows), np.arange(num_rows, dtype=np.int32)
    block, *_ = decode_block(
        config,
        prepare(config, random_parts(0)),
        pool,
        gather_rows(pool, rows_B, slots),
        rows_B=rows_B,
        history_BS=history_BS,
        lengths_B=np.ones(num_rows, np.int32),
        settings=stack_settings([SamplingSettings()] * num_rows),
        uniforms_nBU=np.zeros((*given_nB.shape, NUM_UNIFORMS), np.float32),
        wants_logprobs=np.array(wants_logprobs),
        given_nB=given_nB,
    )
    return history_BS[:, 0], block


@pytest.mark.parametrize("wants_logprobs", [False, True])
def test_given_tokens_are_read_and_have_log_probabilities_where_a_row_wants_them(wants_logprobs):
    given_nB = np.random.default_rng(1).integers(0, CONFIG.vocab_size, (6, 2), np.int32)
    given_nB[-1] = DRAWN
    first_B, block = decode_given(CONFIG, given_nB, wants_logprobs)
    np.testing.assert_array_equal(block.token[:-1], given_nB[:-1])
    tokens_BT = np.stack([first_B, *given_nB[:-1]], axis=1)
    logits, _ = forward(CONFIG, random_parts(0), tokens_BT)
    np.testing.assert_array_equal(block.token[-1], logits[:, -1].argmax(axis=-1))
    logprobs_BnV = np.asarray(jax.nn.log_softmax(logits))
    expected_Bn = np.take_along_axis(logprobs_BnV, np.asarray(block.token).T[..., None], axis=2)
    if wants_logprobs:
        np.testing.assert_allclose(block.logprob.T, expected_Bn[..., 0], atol=3e-5)


def test_a_step_makes_logits_only_where_a_row_draws(monkeypatch):
    made = []

    def counted(*arguments):
        jax.debug.callback(lambda: made.append(1))
        return logits_of(*arguments)

    logits_of = decode.logits
    monkeypatch.setattr(decode, "logits", counted)
    config = dataclasses.replace(CONFIG, max_length=CONFIG.max_length - 1)  # a program of its own
    # One row whose next five tokens are known, and three of padding.
    plan = plan_block([Forced(5)], 4, 8)
    decode_given(config, plan.given_nB)
    jax.effects_barrier()
    assert len(made) == 3


class Forced:
    """A grammar that allows one token only for so many places."""

    is_steady = is_over = False

    def __init__(self, number):
        self.forced = range(number)
