"""Intervals over test texts: of the same models, on other text."""

import numpy as np
import pytest

from dipaco.sweeps import bootstrap
from dipaco.sweeps.bootstrap import drawn, interval_over_texts
from dipaco.sweeps.table import make_table
from dipaco.sweeps.text import ordering_lines, render_sweep_markdown
from dipaco.sweeps.trials import trials_of
from dipaco.workers.scoring import DocumentScores
from tests.sweeps.test_table import ROWS, result

DOCUMENTS = 200


def scores_of(per_token_N, counts_N=None, first=0, texts_N=None):
    counts_N = np.full(len(per_token_N), 10) if counts_N is None else counts_N
    documents_N = np.arange(first, first + len(per_token_N))
    texts_N = documents_N if texts_N is None else texts_N
    return DocumentScores(documents_N, texts_N, -per_token_N * counts_N, counts_N)


@pytest.fixture
def nats():
    """Mean nats a token of very different documents."""
    return np.random.default_rng(0).normal(4.0, 1.0, DOCUMENTS)


def test_of_two_documents_it_is_the_drawings_by_hand(monkeypatch):
    """Both, or twice the first, or twice the second; drawn 2 : 1 : 1, so the ends are the last."""
    before = drawn(scores_of(np.log([4.0, 1.0]), np.array([10, 30])))
    whole = (4.0**10) ** (1 / 40)
    assert {round(value, 6) for value in before.perplexities} == {1.0, 4.0, round(whole, 6)}
    shares = [np.isclose(before.perplexities, value).mean() for value in (whole, 4.0, 1.0)]
    np.testing.assert_allclose(shares, [0.5, 0.25, 0.25], atol=0.05)
    after = drawn(scores_of(np.log([2.0, 3.0]), np.array([10, 30])))
    assert interval_over_texts({0: before}, {0: after}, (0,)) is None  # too few to say
    monkeypatch.setattr(bootstrap, "LEAST_TEXTS", 2)
    interval = interval_over_texts({0: before}, {0: after}, (0,))
    assert interval == pytest.approx((2.0 - 4.0, 3.0 - 1.0))


def test_equal_rows_differ_by_nothing_and_what_both_find_hard_cancels(nats):
    before, after = drawn(scores_of(nats)), drawn(scores_of(nats - 0.02))
    assert interval_over_texts({0: before}, {0: before}, (0,)) == (0.0, 0.0)
    low, high = interval_over_texts({0: before}, {0: after}, (0,)) or (0, 0)
    # Two in a hundred of each drawing's perplexity, which itself is far from sure.
    mean = float(np.exp(nats.mean()))
    assert low < mean * (np.exp(-0.02) - 1) < high < 0
    assert high - low < 0.1 * np.ptp(np.percentile(before.perplexities, (2.5, 97.5)))


def test_it_is_as_wide_as_the_noise_of_documents_says(nats):
    """To first order the mean of independent differences, of deviation s / sqrt(N)."""
    noise_N = np.random.default_rng(1).normal(0.0, 0.1, DOCUMENTS)
    level = np.full(DOCUMENTS, 3.0)
    interval = interval_over_texts(
        {0: drawn(scores_of(level))}, {0: drawn(scores_of(level + noise_N))}, (0,)
    )
    assert interval is not None
    width = 2 * 1.96 * noise_N.std() / np.sqrt(DOCUMENTS) * np.exp(3.0 + noise_N.mean())
    assert interval[1] - interval[0] == pytest.approx(width, rel=0.1)


def test_several_seeds_are_averaged_and_none_may_be_missing(nats):
    by_seed = {seed: drawn(scores_of(nats + 0.1 * seed)) for seed in range(3)}
    others = dict.fromkeys((0, 2, 9), by_seed[1])
    both = interval_over_texts(by_seed, others, (0, 2))
    assert interval_over_texts(by_seed, others, (0, 1, 2)) is None
    by_hand = np.mean(
        [by_seed[1].perplexities - by_seed[seed].perplexities for seed in (0, 2)], axis=0
    )
    assert both == pytest.approx(np.percentile(by_hand, (2.5, 97.5)))


def test_runs_on_other_documents_are_not_paired(nats):
    before = {0: drawn(scores_of(nats))}
    assert interval_over_texts(before, {0: drawn(scores_of(nats, first=1))}, (0,)) is None
    assert interval_over_texts(before, {0: drawn(scores_of(nats[1:]))}, (0,)) is None
    assert interval_over_texts(before, {1: before[0]}, ()) is None


def test_pieces_of_a_text_are_drawn_together(nats):
    """Cut into three alike, texts give the interval of texts in one piece, not a narrower one."""
    noise_N = np.random.default_rng(1).normal(0.0, 0.1, DOCUMENTS)
    texts_N = np.arange(DOCUMENTS)
    ends = []
    for times in (1, 3):
        cut = {"texts_N": np.repeat(texts_N, times)}
        runs = [drawn(scores_of(np.repeat(each, times), **cut)) for each in (nats, nats + noise_N)]
        ends.append(interval_over_texts({0: runs[0]}, {0: runs[1]}, (0,)))
    assert ends[0] == pytest.approx(ends[1])


def test_drawings_are_the_same_in_every_process_and_hold_as_many_documents():
    bootstrap._drawings.cache_clear()
    once = bootstrap._drawings(7)
    bootstrap._drawings.cache_clear()
    np.testing.assert_array_equal(once, bootstrap._drawings(7))
    assert (once.sum(axis=1) == 7).all()
    assert once.shape == (bootstrap.DRAWINGS, 7)


def test_the_table_says_both_intervals_and_which_is_which(nats):
    trials = trials_of("toy", ROWS, (0, 1))
    results = {trial: [result(trial.row, trial.seed)] for trial in trials}
    better_by = {"dense": 0.0, "diloco": 0.1, "flat": 0.2, "pair": 0.05}
    runs = {
        trial: {"modular": drawn(scores_of(nats - better_by[trial.row]))}
        for trial in trials
        if (trial.row, trial.seed) != ("pair", 1)
    }
    table = make_table("toy", trials, results, runs)
    for ordering in table.orderings:
        if "pair" in (ordering.better, ordering.worse):  # the difference is of both seeds
            assert ordering.over_texts is None
            continue
        assert ordering.over_texts is not None
        low, high = ordering.over_texts
        sign = 1 if better_by[ordering.better] > better_by[ordering.worse] else -1
        assert sign * low > 0 < sign * high  # worse minus better, whatever the seeds say
    (line,) = [line for line in ordering_lines(table) if "flat" in line and "diloco" in line]
    assert "over texts" in line
    by_name = {row.name: row for row in table.rows}
    assert by_name["dense"].over_texts is None
    assert by_name["flat"].over_texts[1] < 0
    text = render_sweep_markdown(table)
    assert "over texts: the 95 % interval of the same difference" in text
    low, high = by_name["flat"].over_texts
    assert f"| {low:+.2f} to {high:+.2f} |" in text
    without = make_table("toy", trials, results)
    assert all(ordering.over_texts is None for ordering in without.orderings)
    assert not [line for line in ordering_lines(without) if "texts" in line]
