"""Routing by likelihood, as values."""

import numpy as np
import pytest

from dipaco.errors import BadSetting
from dipaco.routing.capacity import bounds
from dipaco.routing.config import RoutingConfig
from dipaco.routing.likelihood import balanced, balancing_nats, likeliest, prefix_scores

RANDOM = np.random.default_rng(0)
PREFIX_NP = RANDOM.normal(-60, 3, (50, 5))
ALL_NP = np.argsort(RANDOM.normal(0, 1, (50, 5)), axis=1)


def choose(prefix_NP, shortlist_Nn, prior=0.0):
    return likeliest(prefix_scores(prefix_NP, shortlist_Nn, prior), shortlist_Nn)


def test_by_hand():
    prefix = np.array([[-10.0, -9.0, -8.0]] * 4)
    shortlist = np.array([[0, 1], [1, 0], [0, 2], [2, 1]])
    np.testing.assert_array_equal(choose(prefix, shortlist), [1, 1, 2, 2])
    np.testing.assert_array_equal(choose(prefix, shortlist, prior=1.5), [0, 1, 2, 2])
    np.testing.assert_array_equal(choose(prefix, shortlist, prior=2.5), [0, 1, 0, 2])
    scores = prefix_scores(prefix, shortlist, prior=1.5)
    np.testing.assert_array_equal(scores[0], [-8.5, -9.0, -np.inf])


def test_a_shortlist_of_all_paths_is_the_likeliest_of_all():
    np.testing.assert_array_equal(choose(PREFIX_NP, ALL_NP), PREFIX_NP.argmax(axis=1))


def test_a_shortlist_of_one_is_the_choice_of_features():
    np.testing.assert_array_equal(choose(PREFIX_NP, ALL_NP[:, :1]), ALL_NP[:, 0])
    np.testing.assert_array_equal(choose(PREFIX_NP, ALL_NP, prior=1e6), ALL_NP[:, 0])


def test_paths_outside_the_shortlist_are_not_read():
    unread_NP = np.full_like(PREFIX_NP, np.nan)
    np.put_along_axis(
        unread_NP, ALL_NP[:, :3], np.take_along_axis(PREFIX_NP, ALL_NP[:, :3], axis=1), axis=1
    )
    np.testing.assert_array_equal(
        choose(unread_NP, ALL_NP[:, :3], 2.0), choose(PREFIX_NP, ALL_NP[:, :3], 2.0)
    )


def test_a_permutation_of_the_paths_permutes_the_choice():
    moved = np.array([3, 0, 4, 1, 2])  # path p becomes moved[p]
    permuted_NP = np.empty_like(PREFIX_NP)
    permuted_NP[:, moved] = PREFIX_NP
    np.testing.assert_array_equal(
        choose(permuted_NP, moved[ALL_NP[:, :3]], 1.0), moved[choose(PREFIX_NP, ALL_NP[:, :3], 1.0)]
    )


def test_a_document_that_no_path_can_tell_goes_where_features_send_it():
    np.testing.assert_array_equal(choose(np.zeros((50, 5)), ALL_NP), ALL_NP[:, 0])


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"rule": "luck"}, "one of features, likelihood"),
        ({"shortlist": 0}, "1 or more, or None"),
        ({"prior": -1.0}, "0 or more, and finite"),
    ],
)
def test_bad_settings(settings, expected):
    with pytest.raises(BadSetting, match=expected):
        RoutingConfig(**settings)


SCORE_NN = np.take_along_axis(PREFIX_NP, ALL_NP, axis=1)


def test_prices_give_every_path_its_documents():
    price = balancing_nats(SCORE_NN, ALL_NP, 5, floor=1.0, capacity=1.0)
    path = balanced(SCORE_NN, ALL_NP, price)[:, 0]
    np.testing.assert_array_equal(np.bincount(path, minlength=5), [10] * 5)
    np.testing.assert_array_equal(path, (PREFIX_NP - price).argmax(axis=1))


def test_without_bounds_prices_are_zero_and_the_likeliest_path_is_taken():
    price = balancing_nats(SCORE_NN, ALL_NP, 5, floor=0.0, capacity=None)
    np.testing.assert_array_equal(price, np.zeros(5))
    path = balanced(SCORE_NN, ALL_NP, price)[:, 0]
    np.testing.assert_array_equal(path, PREFIX_NP.argmax(axis=1))


def test_documents_stay_in_their_shortlists_where_the_bounds_can_be_met_there():
    shortlist = np.stack([np.arange(50) % 5, (np.arange(50) + 1) % 5], axis=1)
    score = np.take_along_axis(PREFIX_NP, shortlist, axis=1)
    price = balancing_nats(score, shortlist, 5, floor=1.0, capacity=1.0)
    path = balanced(score, shortlist, price, num_choices=2)
    np.testing.assert_array_equal(np.bincount(path[:, 0], minlength=5), [10] * 5)
    np.testing.assert_array_equal(np.sort(path, axis=1), np.sort(shortlist, axis=1))


@pytest.mark.parametrize(("num_paths", "seed"), [(8, 0), (8, 1), (16, 2)])
def test_a_chain_of_moves_within_shortlists_comes_before_one_move_out_of_them(num_paths, seed):
    """Each path's documents can only move on to the next path, at 5 nats or more; the first ones
    are crowded, so that the last are filled by chains through all those between.
    """
    random = np.random.default_rng(seed)
    share_P = np.linspace(1.6, 0.4, num_paths) / num_paths
    home = np.repeat(np.arange(num_paths), np.round(12 * num_paths * share_P).astype(int))
    shortlist = np.stack([home, (home + 1) % num_paths], axis=1)
    score = np.stack([np.zeros(len(home)), -5 - random.exponential(1, len(home))], axis=1)
    price = balancing_nats(score, shortlist, num_paths, floor=0.5, capacity=1.25)
    count_P = np.bincount(balanced(score, shortlist, price)[:, 0], minlength=num_paths)
    least, most = bounds(len(home), num_paths, 0.5, 1.25)
    assert least <= count_P.min() <= count_P.max() <= most


@pytest.mark.parametrize(("starved", "capacity"), [(1, 1.25), (2, 1.4), (3, 1.7)])
def test_paths_that_stand_in_too_few_shortlists_get_what_they_can_and_no_other_gets_too_much(
    starved, capacity
):
    """The last paths all stand in the same 20 shortlists, below the floor of 25."""
    random = np.random.default_rng(0)
    rank_NP = random.normal(size=(400, 8))
    rank_NP[:, 8 - starved :] -= 50
    rank_NP[:20, 8 - starved :] += 100
    shortlist = np.argsort(-rank_NP, axis=1)[:, :4]
    score = -100 + random.normal(0, 4, (400, 4)) + random.normal(0, 3, 8)[shortlist]
    price = balancing_nats(score, shortlist, 8, floor=0.5, capacity=capacity)
    count_P = np.bincount(balanced(score, shortlist, price)[:, 0], minlength=8)
    least, most = bounds(400, 8, 0.5, capacity)
    assert least <= count_P[:-starved].min() <= count_P[:-starved].max() <= most
    assert count_P[-starved:].sum() == 20
    assert count_P[-starved:].min() >= 20 // starved
