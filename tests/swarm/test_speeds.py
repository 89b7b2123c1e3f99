"""What is expected of the volunteers of each path: (samples per second, age) of each."""

from dipaco.swarm.planning.paths import NEW_SECONDS, expected_speeds


def test_a_newcomer_counts_as_a_usual_one():
    here = [(10.0, 99.0), (4.0, 99.0)]
    assert expected_speeds({0: here, 1: [(0.0, 1.0)], 2: []}) == {0: 14.0, 1: 7.0, 2: 0.0}


def test_one_that_computes_nothing_for_minutes_does_not_keep_others_away():
    assert expected_speeds({0: [(0.0, NEW_SECONDS + 1)]}) == {0: 0.0}
    assert expected_speeds({0: [(2.0, NEW_SECONDS + 1)]}) == {0: 2.0}


def test_before_anybody_was_timed_all_are_alike():
    assert expected_speeds({0: [(0.0, 1.0)] * 2, 1: [(0.0, 1.0)]}) == {0: 2.0, 1: 1.0}
