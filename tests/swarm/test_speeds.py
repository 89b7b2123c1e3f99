"""What is expected of the volunteers of each path."""

import pytest

from dipaco.swarm.planning.paths import NEW_SECONDS, PathVolunteer, expected_speeds


def test_a_newcomer_counts_as_it_says_or_as_a_usual_one():
    here = [PathVolunteer(10.0, 3.0, 99.0), PathVolunteer(4.0, 0.0, 99.0)]
    speeds = expected_speeds(
        {0: here, 1: [PathVolunteer(0.0, 5.0, 1.0)], 2: [PathVolunteer(0.0, 0.0, 1.0)], 3: []}
    )
    assert speeds == {0: 14.0, 1: 5.0, 2: pytest.approx(7.0), 3: 0.0}


def test_nobody_empties_a_path_by_a_speed_that_is_not_true():
    speeds = expected_speeds(
        {0: [PathVolunteer(10.0, 0.0, 99.0)], 1: [PathVolunteer(0.0, 1e11, 1.0)]}
    )
    assert speeds[1] == 10.0


def test_one_that_computes_nothing_for_minutes_does_not_keep_others_away():
    assert expected_speeds({0: [PathVolunteer(0.0, 9.0, NEW_SECONDS + 1)]}) == {0: 0.0}
    assert expected_speeds({0: [PathVolunteer(2.0, 9.0, NEW_SECONDS + 1)]}) == {0: 2.0}


def test_before_anybody_was_timed_all_are_alike():
    assert expected_speeds({0: [PathVolunteer(0, 0, 1.0)] * 2, 1: [PathVolunteer(0, 0, 1.0)]}) == {
        0: 2.0,
        1: 1.0,
    }
