"""Re-routing every W tokens: who predicts what, and what it costs, by hand."""

import numpy as np
import pytest

from dipaco.errors import NothingToScore
from dipaco.evaluation.perplexity import perplexity, routed, score_documents, score_tokens
from dipaco.evaluation.rerouting import path_of_tokens, rerouted

PREFIX = 2


def test_the_document_router_chooses_the_first_chunk_and_each_chunk_the_next():
    choice = np.arange(20)[None, :10] + 100  # after token t, path 100 + t
    path = path_of_tokens(np.array([7]), choice, every=3, prefix_tokens=PREFIX)
    #                         prefix  first    after 4          after 7
    np.testing.assert_array_equal(path, [[7, 7, 7, 7, 7, 104, 104, 104, 107, 107]])
    one = path_of_tokens(np.array([7]), choice, every=1, prefix_tokens=PREFIX)
    np.testing.assert_array_equal(one, [[7, 7, 7, 102, 103, 104, 105, 106, 107, 108]])


def scored(num_paths=3, num_documents=5, num_tokens=10):
    random = np.random.default_rng(0)
    lengths = np.array([10, 9, 3, 2, 6])
    values = random.normal(-3, 1, (num_paths, num_documents, num_tokens)).astype(np.float32)
    index = np.arange(num_tokens)
    values[:, ~((index >= PREFIX) & (index < lengths[:, None]))] = 0
    return values, lengths, random


@pytest.mark.parametrize("every", [8, 10, 1000])
def test_with_w_as_long_as_the_document_it_equals_routing_once(every):
    values, lengths, random = scored()
    path, choice = random.integers(0, 3, 5), random.integers(0, 3, (5, 10))
    result = rerouted(values, path_of_tokens(path, choice, every, PREFIX), lengths, PREFIX)
    counts = np.clip(lengths - PREFIX, 0, None)
    once = routed(values.astype(np.float64).sum(axis=2), path)
    assert result.perplexity == perplexity(once, counts)
    assert (result.switches, result.tokens_read_again) == (0, 0)
    assert result.tokens == counts.sum()


@pytest.mark.parametrize("every", [1, 2, 3])
def test_every_token_is_predicted_by_its_path_and_a_switch_reads_the_text_again(every):
    values, lengths, random = scored()
    path, choice = random.integers(0, 3, 5), random.integers(0, 3, (5, 10))
    paths = path_of_tokens(path, choice, every, PREFIX)
    result = rerouted(iter(values), paths, lengths, PREFIX)
    total = switches = again = 0
    for document, length in enumerate(lengths):
        now = path[document]
        for token in range(PREFIX, length):
            if (
                token > PREFIX
                and (token - PREFIX) % every == 0
                and choice[document, token - 1] != now
            ):
                now, switches, again = choice[document, token - 1], switches + 1, again + token
            total += values[now, document, token]
    count = np.clip(lengths - PREFIX, 0, None).sum()
    assert result.perplexity == pytest.approx(np.exp(-total / count), rel=1e-5)
    assert (result.switches, result.tokens_read_again) == (switches, again)


def test_the_best_choice_at_every_token_is_no_worse_than_the_best_path():
    values, lengths, _ = scored()
    choice = np.roll(values.argmax(axis=0), -1, axis=1)
    paths = path_of_tokens(values[:, :, PREFIX].argmax(axis=0), choice, 1, PREFIX)
    best = rerouted(values, paths, lengths, PREFIX).perplexity
    for path in range(3):
        fixed = np.full((5, 10), path)
        assert best <= rerouted(values, fixed, lengths, PREFIX).perplexity


def test_documents_that_end_within_the_prefix_are_an_error():
    values = np.zeros((2, 3, 4), np.float32)
    with pytest.raises(NothingToScore):
        rerouted(values, np.zeros((3, 4), np.int32), np.array([2, 1, 0]), PREFIX)


def test_scores_of_tokens_sum_to_those_of_documents_bit_for_bit():
    random = np.random.default_rng(3)
    tokens, lengths = random.integers(1, 9, (7, 6)), np.array([6, 5, 2, 1, 6, 3, 4])

    def log_likelihoods(tokens, segments):
        return -(np.sin(tokens.astype(np.float32)) ** 2) - 1

    options = {"prefix_tokens": 2, "batch_size": 3}
    *summed, values, _ = score_tokens(log_likelihoods, tokens, lengths, **options)
    sums, counts = score_documents(log_likelihoods, tokens, lengths, **options)
    np.testing.assert_array_equal(summed, [sums, counts])
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values.astype(np.float64).sum(axis=1), sums)
