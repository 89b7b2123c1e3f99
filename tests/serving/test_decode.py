"""The compiled programs of serving: buckets, the pool's shapes, scores of a prompt."""

import jax
import numpy as np
import pytest

from dipaco.model.inference import prepare
from dipaco.model.lm import forward
from dipaco.serving.decoding.decode import buckets, make_pool, score_prompt, smallest_fitting
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
