"""The classifier behind discriminative routing, against what it should find."""

import numpy as np
import pytest

from dipaco.routing.config import RoutingConfig
from dipaco.routing.discriminative import logistic_regression
from dipaco.routing.errors import TooFewRouterDocuments
from tests.support.fitted_router import fit_discriminative


def test_separate_clusters_are_told_apart(heaps):
    features = heaps(600)
    nearest = np.random.default_rng(0).normal(size=(6, 24)) * 3  # the heaps' centres
    label = ((features[:, None] - nearest[None]) ** 2).sum(axis=2).argmin(axis=1)
    share = tuple(np.bincount(label, minlength=6) / 600)
    router = fit_discriminative(RoutingConfig(target_share=share), features, label, 6)
    assert (router.assign(features)[:, 0] == label).mean() > 0.98


def test_its_gradient_is_zero_where_it_ends():
    """Against the definition: mean cross-entropy + r / 2 |w|^2, by finite differences."""
    random = np.random.default_rng(0)
    x, label = random.normal(size=(60, 3)), random.integers(0, 3, 60)
    weight, bias = logistic_regression(x, label, 3, regularisation=0.1)

    def loss(weight):
        logit = x @ weight + bias
        logit -= np.log(np.exp(logit).sum(axis=1, keepdims=True))
        return -logit[np.arange(60), label].mean() + 0.05 * (weight**2).sum()

    for index in np.ndindex(weight.shape):
        step = np.zeros(weight.shape)
        step[index] = 1e-3
        assert abs(loss(weight + step) - loss(weight - step)) / 2e-3 < 2e-3


def test_the_same_documents_give_the_same_router_and_other_labels_another(heaps):
    features = heaps(100)
    label = np.arange(100) % 4
    routers = [
        fit_discriminative(RoutingConfig(), features, by, 4) for by in (label, label, -label % 4)
    ]
    assert routers[0].version == routers[1].version != routers[2].version


def test_fewer_documents_than_paths_is_a_sentence(heaps):
    with pytest.raises(TooFewRouterDocuments, match="3 router documents"):
        fit_discriminative(RoutingConfig(), heaps(3), np.zeros(3, np.int32), 4)
