"""What is read off a finished run's scores: several runs as one, and longer beginnings."""

import numpy as np
import pytest
from routing_gap import Scores, after_first_tokens, table, together

PREFIX_TOKENS, LENGTH, PATHS, DOCUMENTS = 4, 16, 3, 24


@pytest.fixture
def value_NPT():
    return -np.random.default_rng(0).exponential(2.0, (DOCUMENTS, PATHS, LENGTH))


def scores_of(value_NPT, length_N=None):
    """As a run keeps them: of the first tokens their sum alone."""
    length_N = np.full(DOCUMENTS, LENGTH) if length_N is None else length_N
    value_NPT = np.where(np.arange(LENGTH) < length_N[:, None, None], value_NPT, 0.0)
    kept_NPT = np.where(np.arange(LENGTH) < PREFIX_TOKENS, 0.0, value_NPT)
    return Scores(
        order_NP=np.tile(np.arange(PATHS), (DOCUMENTS, 1)),
        prefix_NP=value_NPT[:, :, 1:PREFIX_TOKENS].sum(axis=2),
        sum_NP=kept_NPT.sum(axis=2),
        count_N=length_N - PREFIX_TOKENS,
        text_N=np.arange(DOCUMENTS) // 2,
        is_test_N=np.zeros(DOCUMENTS, bool),
        mixed_sums={"ensemble": {2.0: kept_NPT.sum(axis=2).max(axis=1)}},
        value_NPT=kept_NPT,
    )


def test_documents_go_by_longer_beginnings_and_are_scored_after_the_longest(value_NPT):
    after = after_first_tokens(scores_of(value_NPT), PREFIX_TOKENS, 8, 12)
    np.testing.assert_allclose(after.prefix_NP, value_NPT[:, :, 1:8].sum(axis=2))
    np.testing.assert_allclose(after.sum_NP, value_NPT[:, :, 12:].sum(axis=2))
    assert (after.count_N == LENGTH - 12).all()


def test_a_document_that_ends_before_the_longest_beginning_is_left_out(value_NPT):
    length_N = np.full(DOCUMENTS, LENGTH)
    length_N[5], length_N[7] = 12, 13
    after = after_first_tokens(scores_of(value_NPT, length_N), PREFIX_TOKENS, 8, 12)
    assert len(after.count_N) == DOCUMENTS - 1
    assert after.count_N[6] == 1  # of document 7


def test_a_run_twice_says_what_it_says_once(value_NPT):
    """Texts are drawn in all runs or in none, so that intervals stay as wide."""
    once = scores_of(value_NPT)
    both = together([once, once])
    assert len(both.count_N) == 2 * DOCUMENTS
    lines, twice = (table(scores, [2, PATHS], [0.0, 2.0], is_test=False) for scores in (once, both))
    assert twice[1:] == lines[1:]
    assert twice[0].startswith("48 of 48 documents, of 12 texts")


def test_two_runs_have_the_mean_of_their_log_likelihoods(value_NPT):
    once, other = scores_of(value_NPT), scores_of(value_NPT * 2)
    shown = table(together([once, other]), [PATHS], [0.0], is_test=False)
    mean = -1.5 * value_NPT[:, 0, PREFIX_TOKENS:].mean()
    assert f"| features | | {np.exp(mean):.2f} | |" in shown


def test_settings_are_chosen_on_tune_and_shown_on_test(value_NPT):
    scores = scores_of(value_NPT)
    is_test_N = np.arange(DOCUMENTS) % 2 == 0
    better_on_tune, on_test = np.where(is_test_N, -9.0, 0.0), np.where(is_test_N, 0.0, -9.0)
    scores = scores._replace(
        is_test_N=is_test_N, mixed_sums={"ensemble": {1.0: on_test, 4.0: better_on_tune}}
    )
    shown = table(scores, [PATHS], [0.0], is_test=True)
    assert shown[0].startswith("12 of 24 documents")
    assert any(line.startswith("| ensemble | temperature 4 | 2.12 |") for line in shown)
