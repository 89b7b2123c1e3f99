"""Losses small enough to check by hand."""

import numpy as np

from dipaco.model.loss import next_token_loss, token_log_likelihoods

TOKENS = np.array([[2, 0, 1, 1, 2, 0]], np.int32)
SEGMENTS = np.array([[1, 1, 1, 2, 2, 0]], np.int32)


def test_the_targets_are_the_tokens_with_a_predecessor_in_their_segment():
    flat = np.zeros((1, 6, 4), np.float32)
    total, count = next_token_loss(flat, TOKENS, SEGMENTS)
    assert count == 3  # tokens 1, 2 and 4
    np.testing.assert_allclose(total, 3 * np.log(4), rtol=1e-6)


def test_each_likelihood_is_at_its_own_token():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(1, 6, 4)).astype(np.float32)
    log_probability = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    by_hand = np.zeros((1, 6))
    for t in (1, 2, 4):
        by_hand[0, t] = log_probability[0, t - 1, TOKENS[0, t]]
    for chunks in (1, 2, 3):
        given = (lambda _, x: x, None, logits, TOKENS, SEGMENTS, chunks)
        np.testing.assert_allclose(token_log_likelihoods(*given), by_hand, atol=1e-6)
    total, _ = next_token_loss(logits, TOKENS, SEGMENTS)
    np.testing.assert_allclose(total, -by_hand.sum(), rtol=1e-6)


def test_a_batch_of_padding_has_no_targets():
    total, count = next_token_loss(np.ones((1, 6, 4), np.float32), TOKENS, np.zeros_like(SEGMENTS))
    assert (total, count) == (0, 0)
