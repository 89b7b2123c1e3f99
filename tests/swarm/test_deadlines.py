"""Deadlines learned from durations, against values computed by hand."""

import pytest

from dipaco.swarm.planning.timing import MIN_SPREAD, SPREADS, Rate, deadline_seconds


def test_a_deadline_is_learned_and_one_stall_does_not_lengthen_it():
    regular = [1.0] * 20
    assert deadline_seconds(regular, 1.0) == pytest.approx(1 + SPREADS * MIN_SPREAD, rel=0.3)
    with_a_stall = [*regular, 600.0]
    assert deadline_seconds(with_a_stall, 1.0) < 5.0
    irregular = [1.0, 3.0] * 10
    assert deadline_seconds(irregular, 1.0) > deadline_seconds(regular, 1.0)


def test_the_guess_decides_before_the_first_measurement_and_weighs_less_with_each():
    assert deadline_seconds([], 2.0) == pytest.approx(2.0 * (1 + SPREADS))
    assert deadline_seconds([0.1] * 50, 2.0) < deadline_seconds([0.1], 2.0)


def test_a_rate_is_unbiased_from_the_first_measurement_on():
    rate = Rate().after(10, 2.0)
    assert rate.per_second == pytest.approx(5.0)
    for _ in range(200):
        rate = rate.after(1, 1.0)
    assert rate.per_second == pytest.approx(1.0)
