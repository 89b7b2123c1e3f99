"""Mixtures of paths, against plain sums of probabilities."""

import numpy as np
import pytest

from dipaco.evaluation.ensembles import Mixture, RenewedMixture, best_of, log_posterior, mixed

RANDOM = np.random.default_rng(0)
PATHS, DOCUMENTS, TOKENS, PREFIX = 4, 6, 10, 3
IS_SCORED = (np.arange(TOKENS) >= PREFIX) & (np.arange(TOKENS) < RANDOM.integers(4, 11, (6, 1)))
VALUES = np.where(IS_SCORED, -RANDOM.exponential(2.0, (PATHS, DOCUMENTS, TOKENS)), 0.0)
SCORES = RANDOM.normal(-20, 2, (DOCUMENTS, PATHS))


def sums(mixture, values=VALUES):
    (sum_N,) = mixed([mixture], values, IS_SCORED)
    return sum_N


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_a_mixture_is_the_weighted_mean_of_probabilities(temperature):
    weight = np.exp(SCORES / temperature)
    weight /= weight.sum(axis=1, keepdims=True)
    probability = np.einsum("np,pnt->nt", weight, np.exp(VALUES))
    expected = np.where(IS_SCORED, np.log(probability), 0).sum(axis=1)
    got = sums(Mixture(log_posterior(SCORES, temperature)))
    np.testing.assert_allclose(got, expected, rtol=1e-12)


@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_a_renewed_mixture_weighs_by_all_that_came_before(temperature):
    expected = np.zeros(DOCUMENTS)
    for n in range(DOCUMENTS):
        score = SCORES[n].copy()
        for t in np.flatnonzero(IS_SCORED[n]):
            weight = np.exp(score / temperature)
            expected[n] += np.log(weight / weight.sum() @ np.exp(VALUES[:, n, t]))
            score += VALUES[:, n, t]
    np.testing.assert_allclose(sums(RenewedMixture(SCORES, temperature)), expected, rtol=1e-12)


def test_without_a_temperature_the_renewed_mixture_is_that_of_whole_documents():
    """The chain rule: predicting token by token is predicting the mixture of the documents."""
    weight = np.exp(log_posterior(SCORES))
    whole = np.log(np.einsum("np,pn->n", weight, np.exp(VALUES.sum(axis=2))))
    np.testing.assert_allclose(sums(RenewedMixture(SCORES)), whole, rtol=1e-12)


def test_paths_that_agree_are_any_of_them():
    same = np.repeat(VALUES[:1], PATHS, axis=0)
    for mixture in (Mixture(log_posterior(SCORES)), RenewedMixture(SCORES, 4.0)):
        np.testing.assert_allclose(sums(mixture, same), VALUES[0].sum(axis=1), rtol=1e-12)


def test_the_best_one_is_routing_by_the_scores():
    alone = Mixture(log_posterior(best_of(SCORES, 1), 4.0))
    chosen = VALUES.sum(axis=2)[SCORES.argmax(axis=1), np.arange(DOCUMENTS)]
    np.testing.assert_allclose(sums(alone), chosen, rtol=1e-12)
    assert (np.isfinite(best_of(SCORES, 2)).sum(axis=1) == 2).all()
    np.testing.assert_array_equal(best_of(SCORES, PATHS), SCORES)
