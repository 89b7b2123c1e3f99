"""Routing by likelihood, as values."""

import numpy as np

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


SCORE_NN = np.take_along_axis(PREFIX_NP, ALL_NP, axis=1)


def test_prices_give_every_path_its_documents():
    price = balancing_nats(SCORE_NN, ALL_NP, floor=1.0, capacity=1.0)
    path = balanced(SCORE_NN, ALL_NP, price)[:, 0]
    np.testing.assert_array_equal(np.bincount(path, minlength=5), [10] * 5)
    np.testing.assert_array_equal(path, (PREFIX_NP - price).argmax(axis=1))


def test_without_bounds_prices_are_zero_and_the_likeliest_path_is_taken():
    price = balancing_nats(SCORE_NN, ALL_NP, floor=0.0, capacity=None)
    np.testing.assert_array_equal(price, np.zeros(5))
    path = balanced(SCORE_NN, ALL_NP, price)[:, 0]
    np.testing.assert_array_equal(path, PREFIX_NP.argmax(axis=1))
