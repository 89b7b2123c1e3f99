"""Calibration: every path gets its share, of fitted documents and, nearly, of others."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dipaco.errors import BadSetting
from dipaco.routing.calibration import calibrate, is_near, target_share
from dipaco.routing.capacity import bounds
from dipaco.routing.config import RoutingConfig
from tests.support.fitted_router import fit_discriminative


def shares(logit_NP, bias_P):
    path_N = (logit_NP + bias_P).argmax(axis=1)
    return np.bincount(path_N, minlength=logit_NP.shape[1]) / len(logit_NP)


@settings(max_examples=30)
@example(num_paths=6, crowding=3.0, unevenness=0.2, seed=16912)  # two chains are 6e-9 apart
@given(
    num_paths=st.integers(2, 12),
    crowding=st.floats(0, 3),
    unevenness=st.floats(0.2, 3),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_path_gets_within_a_twentieth_of_its_target(num_paths, crowding, unevenness, seed):
    random = np.random.default_rng(seed)
    logit_NP = random.normal(size=(400, num_paths)) + crowding * np.arange(num_paths)
    share_P = np.maximum(random.dirichlet(np.full(num_paths, unevenness)), 1 / 200)
    share_P /= share_P.sum()
    got_P = shares(logit_NP, calibrate(logit_NP, share_P))
    assert (abs(got_P - share_P) <= np.maximum(0.05 * share_P, 1 / 400) + 1e-9).all()
    assert got_P.min() > 0


def test_the_bias_is_zero_where_the_shares_are_right_already():
    logit_NP = np.eye(4)[np.arange(40) % 4]
    assert not calibrate(logit_NP, np.full(4, 0.25)).any()


def test_the_target_is_what_the_labels_say_within_floor_and_capacity():
    label_N = np.repeat([0, 1, 2], [60, 30, 10])  # and none for path 3
    within = {"given": None, "floor": 0.4, "capacity": 2.0}
    share_P = target_share(label_N, 4, **within)
    np.testing.assert_allclose(share_P, [0.5, 0.3, 0.1, 0.1], atol=0.02)
    assert share_P.sum() == pytest.approx(1)
    unbound = target_share(label_N, 4, given=None, floor=0.0, capacity=None)
    assert unbound[3] == pytest.approx(0.01, rel=0.05), "one document: no path is empty"
    np.testing.assert_allclose(unbound[:3], [0.6, 0.3, 0.1], atol=0.01)


@pytest.mark.parametrize("seed", range(2))
def test_targets_on_a_bound_are_met_within_the_bound(heaps, seed):
    """6 labels in 10 are of one path: its target is the capacity, and it gets no more."""
    label_N = np.random.default_rng(seed).choice(4, 300, p=[0.6, 0.2, 0.15, 0.05])
    features_ND = heaps(300, seed=seed)
    router = fit_discriminative(RoutingConfig(capacity=1.25, floor=0.5), features_ND, label_N, 4)
    count_P = np.bincount(router.assign(features_ND)[:, 0], minlength=4)
    least, most = bounds(300, 4, 0.5, 1.25)
    assert least <= count_P.min() <= count_P.max() <= most


def test_a_given_target_is_not_held_to_the_bounds(heaps):
    label_N = np.random.default_rng(0).choice(4, 300)
    share = (0.7, 0.1, 0.1, 0.1)
    router = fit_discriminative(RoutingConfig(target_share=share), heaps(300), label_N, 4)
    count_P = np.bincount(router.assign(heaps(300))[:, 0], minlength=4)
    assert is_near(count_P, np.array(share))


@pytest.mark.parametrize("label", [0, 3])
def test_where_one_path_is_always_best_the_others_share_the_rest(label):
    share_P = target_share(np.full(100, label), 4, given=None, floor=0.5, capacity=1.25)
    expected = np.full(4, 0.6875 / 3)
    expected[label] = 0.3125
    np.testing.assert_allclose(share_P, expected, atol=1e-6)


def test_a_capacity_of_one_gives_every_path_the_same():
    share_P = target_share(np.arange(40) % 3, 4, given=None, floor=0.5, capacity=1.0)
    np.testing.assert_allclose(share_P, np.full(4, 0.25))


def test_a_given_share_is_taken_and_must_be_one_for_each_path_and_no_empty_one():
    label_N = np.zeros(50, np.int32)
    within = {"floor": 0.5, "capacity": 1.25}
    np.testing.assert_allclose(target_share(label_N, 2, given=(0.9, 0.1), **within), [0.9, 0.1])
    with pytest.raises(BadSetting, match="each of 3 paths, and 2 are given"):
        target_share(label_N, 3, given=(0.9, 0.1), **within)
    with pytest.raises(BadSetting, match="one of the 50 router documents"):
        target_share(label_N, 2, given=(0.99, 0.01), **within)


def labelled(heaps, num_documents, seed, num_paths=16):
    """Documents in clusters; which path is best depends on the feature, on chance, and on the path:
    some are seldom best.
    """
    rule = np.random.default_rng(99)
    weight_DP, liked_P = rule.normal(size=(24, num_paths)) / 8, rule.normal(size=num_paths)
    random = np.random.default_rng([seed, 1])
    features_ND = heaps(num_documents, seed=seed)
    logit_NP = features_ND @ weight_DP + liked_P + random.gumbel(size=(num_documents, num_paths))
    return features_ND, logit_NP.argmax(axis=1)


@pytest.mark.parametrize(("seed", "given_share"), [(0, False), (1, True)])
def test_at_16_paths_shares_are_right_where_fitted_and_within_three_errors_on_new_documents(
    heaps, seed, given_share
):
    """Bar 3: within 10 % of the target on the fitted documents, within three binomial errors on
    others, no empty path.
    """
    features_ND, label_N = labelled(heaps, 3200, seed)
    given = tuple(np.arange(20, 36) / np.arange(20, 36).sum()) if given_share else None
    config = RoutingConfig(target_share=given)
    router = fit_discriminative(config, features_ND, label_N, 16)
    share_P = target_share(label_N, 16, given=given, floor=config.floor, capacity=config.capacity)

    def got(features):
        return np.bincount(router.assign(features)[:, 0], minlength=16) / len(features)

    assert abs(got(features_ND) / share_P - 1).max() <= 0.1
    others_ND, _ = labelled(heaps, 640, seed + 100)
    error_P = np.sqrt(share_P * (1 - share_P) / len(others_ND))
    assert (abs(got(others_ND) - share_P) <= 3 * error_P).all()
    assert got(others_ND).min() > 0
