"""Balanced EM with models that a reader can follow: each is a mean, its score minus a distance."""

import numpy as np
import pytest

from dipaco.routing.balanced_em import balanced_em
from dipaco.routing.errors import TooFewTrainingDocuments

RANDOM = np.random.default_rng(0)
HEAPS = np.repeat([0.0, 10.0, 20.0], 20)
POINTS = HEAPS + RANDOM.normal(0, 1, 60)
SHUFFLED = RANDOM.permutation(np.repeat([0, 1, 2], 20))


def learn(means, path_N, each):
    return [POINTS[path_N == path].mean() for path in range(len(means))]


def score(means):
    return -((POINTS[:, None] - np.array(means)) ** 2)


def fitted(first=SHUFFLED, rounds=20, **bounds):
    options = {"floor": 1.0, "capacity": 1.0} | bounds
    return balanced_em([0.0] * 3, learn, score, first, 3, rounds=rounds, **options)


def paths(em):
    return (em.score_NP - em.price_P).argmax(axis=1)


def test_documents_are_divided_equally_and_by_what_they_are():
    em = fitted()
    np.testing.assert_array_equal(np.bincount(paths(em)), [20, 20, 20])
    assert {frozenset(np.flatnonzero(paths(em) == path)) for path in range(3)} == {
        frozenset(range(start, start + 20)) for start in (0, 20, 40)
    }


def test_without_bounds_there_are_no_prices():
    em = fitted(floor=0.0, capacity=None, rounds=3)
    np.testing.assert_array_equal(em.price_P, np.zeros(3))


def test_more_rounds_never_say_less_of_their_documents():
    def likelihood(rounds):
        em = fitted(rounds=rounds)
        return em.score_NP[np.arange(60), paths(em)].sum()

    values = [likelihood(rounds) for rounds in range(1, 8)]
    assert values == sorted(values)


def test_fewer_documents_than_paths_are_refused():
    sentence = "2 training documents cannot be shared out to 3 small models"
    with pytest.raises(TooFewTrainingDocuments, match=sentence):
        fitted(first=np.array([0, 1]))
