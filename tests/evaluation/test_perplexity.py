import numpy as np
import pytest

from dipaco.errors import NothingToScore
from dipaco.evaluation.perplexity import (
    perplexity,
    routed,
    score_documents,
    wrong_path,
)


def minus_token(tokens_BT, segments_BT):
    """A model for which the log-likelihood of a token is minus its id; padding says -1000."""
    return np.where(segments_BT > 0, -tokens_BT.astype(np.float32), -1000.0)


TOKENS = np.array([[9, 1, 2, 3], [9, 4, 5, 0], [9, 0, 0, 0]])
LENGTHS = np.array([4, 3, 1])


def test_scores_by_hand():
    sums, counts = score_documents(minus_token, TOKENS, LENGTHS, prefix_tokens=1, batch_size=2)
    np.testing.assert_array_equal(sums, [-6, -9, 0])
    np.testing.assert_array_equal(counts, [3, 2, 0])
    assert (sums.dtype, counts.dtype) == (np.float64, np.int64)


def test_the_prefix_is_left_out():
    sums, counts = score_documents(minus_token, TOKENS, LENGTHS, prefix_tokens=2, batch_size=8)
    np.testing.assert_array_equal(sums, [-5, -5, 0])
    np.testing.assert_array_equal(counts, [2, 1, 0])


@pytest.mark.parametrize("batch_size", [1, 2, 3, 50])
def test_the_batch_size_changes_only_the_shape_that_the_model_sees(batch_size):
    shapes = set()

    def watched(tokens_BT, segments_BT):
        shapes.add((tokens_BT.shape, segments_BT.shape, tokens_BT.dtype, segments_BT.dtype))
        return minus_token(tokens_BT, segments_BT)

    sums, _ = score_documents(watched, TOKENS, LENGTHS, prefix_tokens=1, batch_size=batch_size)
    np.testing.assert_array_equal(sums, [-6, -9, 0])
    shape = (batch_size, 4)
    assert shapes == {(shape, shape, np.dtype(np.int32), np.dtype(np.int32))}


def test_infinities_at_tokens_that_are_not_scored_do_not_count():
    def padded_with_infinity(tokens_BT, segments_BT):
        return np.where((segments_BT > 0) & (tokens_BT < 9), -1.0, -np.inf)

    sums, _ = score_documents(padded_with_infinity, TOKENS, LENGTHS, prefix_tokens=1)
    np.testing.assert_array_equal(sums, [-3, -2, 0])


def test_no_documents():
    sums, counts = score_documents(minus_token, np.zeros((0, 4), int), np.zeros(0, int))
    assert (len(sums), len(counts)) == (0, 0)


def test_perplexity_by_hand():
    """Two tokens of probability 1/2 and two of 1/8: the geometric mean is 1/4."""
    assert perplexity(np.log([1 / 4, 1 / 64]), np.array([2, 2])) == pytest.approx(4)


def test_long_documents_weigh_more_than_short_ones():
    assert perplexity(np.array([-30.0, 0.0]), np.array([30, 10])) == pytest.approx(np.exp(0.75))


def test_a_document_is_predicted_by_the_path_that_it_is_routed_to():
    sum_PN = np.array([[-1.0, -4.0], [-2.0, -2.0]])
    assert routed(sum_PN, np.array([1, 0])).tolist() == [-2.0, -4.0]


def test_a_wrong_path_is_the_mean_of_those_that_a_document_was_not_routed_to():
    sum_PN = np.array([[-1.0, -9.0], [-3.0, -2.0], [-5.0, -4.0]])
    # The first document goes to path 0, the second to path 2: (3 + 5) / 2 and (9 + 2) / 2 nats.
    assert wrong_path(sum_PN, np.array([0, 2])).tolist() == [-4.0, -5.5]
    # Of two paths it is the other one; of equal paths it is the routed one.
    assert wrong_path(sum_PN[:2], np.array([0, 1])).tolist() == [-3.0, -9.0]
    equal = np.repeat(sum_PN[:1], 3, axis=0)
    paths = np.array([1, 2])
    assert wrong_path(equal, paths) == pytest.approx(routed(equal, paths))


def test_nothing_after_the_prefix_is_an_error():
    with pytest.raises(NothingToScore, match="Documents: 3, and none"):
        perplexity(np.zeros(3), np.zeros(3, int))
