"""The share of a gap, and its interval over texts."""

import numpy as np
import pytest

from dipaco.evaluation.gap import LEAST_TEXTS, in_words, share_of_gap

RANDOM = np.random.default_rng(0)
COUNT = RANDOM.integers(10, 90, 300)
TEXTS = np.arange(300)
BEST = -4.0 * COUNT
BEFORE = BEST - RANDOM.exponential(0.3, 300) * COUNT


def test_the_router_itself_closes_nothing_and_the_best_path_all():
    assert share_of_gap(BEFORE, BEFORE, BEST, COUNT, TEXTS) == (0, 0, 0)
    assert share_of_gap(BEFORE, BEST, BEST, COUNT, TEXTS) == (1, 1, 1)


def test_documents_that_are_all_alike_leave_no_doubt():
    share = share_of_gap(COUNT * -5.0, COUNT * -4.5, COUNT * -4.0, COUNT, TEXTS)
    expected = (np.exp(5) - np.exp(4.5)) / (np.exp(5) - np.exp(4))
    assert share == pytest.approx((expected,) * 3)


def test_the_interval_holds_the_share_and_narrows_with_documents():
    after = np.where(RANDOM.random(300) < 0.5, BEST, BEFORE)
    share = share_of_gap(BEFORE, after, BEST, COUNT, TEXTS)
    assert share.low < share.value < share.high
    assert 0.3 < share.value < 0.7
    fewer = share_of_gap(BEFORE[:50], after[:50], BEST[:50], COUNT[:50], TEXTS[:50])
    assert fewer.high - fewer.low > share.high - share.low


def test_a_permutation_of_the_documents_keeps_the_share():
    after, order = (BEFORE + BEST) / 2, RANDOM.permutation(300)
    moved = share_of_gap(BEFORE[order], after[order], BEST[order], COUNT[order], TEXTS[order])
    assert moved.value == pytest.approx(share_of_gap(BEFORE, after, BEST, COUNT, TEXTS).value)


def test_pieces_of_a_text_are_drawn_together():
    """Thrice each document is no more text than once: the interval is that of a hundred."""
    after = np.where(RANDOM.random(100) < 0.5, BEST[:100], BEFORE[:100])
    once = share_of_gap(BEFORE[:100], after, BEST[:100], COUNT[:100], TEXTS[:100])
    thrice = [np.repeat(each[:100], 3) for each in (BEFORE, after, BEST, COUNT, TEXTS)]
    assert share_of_gap(*thrice) == pytest.approx(once)
    order = RANDOM.permutation(300)
    assert share_of_gap(*(each[order] for each in thrice)) == pytest.approx(once)


def test_of_too_few_texts_there_is_no_interval_and_of_enough_there_is():
    after, few = (BEFORE + BEST) / 2, TEXTS % (LEAST_TEXTS - 1)
    share = share_of_gap(BEFORE, after, BEST, COUNT, few)
    assert 0 < share.value < 1
    assert np.isnan([share.low, share.high]).all()
    assert in_words(share) == f"{share.value:.0%} (too few texts)"
    share = share_of_gap(BEFORE, after, BEST, COUNT, TEXTS % LEAST_TEXTS)
    assert share.low < share.value < share.high
    assert in_words(share) == f"{share.value:.0%} [{share.low:.0%}, {share.high:.0%}]"


def test_drawings_without_a_gap_are_left_out_of_the_interval():
    """Only one text of ten has anything to gain: a third of the drawings do not have it."""
    best = np.where(TEXTS[:10] == 0, BEST[:10], BEFORE[:10])
    share = share_of_gap(BEFORE[:10], best, best, COUNT[:10], TEXTS[:10])
    assert share == pytest.approx((1, 1, 1))
    share = share_of_gap(BEFORE[:10], best - 1e-9, best, COUNT[:10], TEXTS[:10])
    assert share == pytest.approx((1, 1, 1), abs=1e-4), "of no gap, no share is infinite"
    share = share_of_gap(BEFORE[:10], BEFORE[:10], BEFORE[:10], COUNT[:10], TEXTS[:10])
    assert in_words(share) == "no gap"
