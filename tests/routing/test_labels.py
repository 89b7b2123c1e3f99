"""Labels: the best path of each document, whatever comes first."""

import numpy as np

from dipaco.routing.labels import best_paths


def test_the_label_is_the_path_of_the_highest_score_and_of_equal_ones_the_first():
    scores = np.array([[-3.0, -1.0, -2.0], [-2.0, -1.0, -5.0], [-2.0, -9.0, -1.0]])
    np.testing.assert_array_equal(best_paths(scores), [1, 0, 2])


def test_scores_are_taken_one_path_at_a_time_and_left_as_they_were():
    scores = np.random.default_rng(0).normal(size=(5, 7, 3))
    before = scores.copy()
    label = best_paths(score for score in scores)
    np.testing.assert_array_equal(label, scores.argmax(axis=0))
    np.testing.assert_array_equal(scores, before)
    assert label.dtype == np.int32
