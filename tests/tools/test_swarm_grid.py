"""What volunteers of a whole run are compared with: the best that they could have done."""

import pytest
from swarm_grid import Presence, best_split, rows_of_a_path

SPEEDS = (5.0, 5.0, 3.0, 2.5, 2.0, 1.5)  # rows a second


def test_the_slowest_path_of_the_best_split_is_as_fast_as_it_can_be():
    assert best_split(SPEEDS) == 4.5, "5, 5, 3 + 1.5, 2.5 + 2"
    assert best_split((1.0, 1.0, 1.0, 9.0)) == 1.0
    assert best_split((6.0, 2.0)) == 2.0, "fewer than paths: spread without loss"


def test_rows_that_were_possible_follow_who_was_there():
    six = [Presence(0.0, 100.0, speed) for speed in SPEEDS]
    assert rows_of_a_path(six, 0.0, 10.0) == pytest.approx((45.0, 10 * 19 / 4))
    left = [*six[1:], Presence(0.0, 4.0, 5.0)]
    by_split, by_spread = rows_of_a_path(left, 0.0, 10.0)
    assert by_split == pytest.approx(4 * 4.5 + 6 * 2.5), "then 5, 3, 2.5, 2 + 1.5"
    assert by_spread == pytest.approx((4 * 19 + 6 * 14) / 4)
    assert rows_of_a_path(six, 100.0, 110.0) == (0.0, 0.0)
