"""Estimates, refresh times and matchmaking, against values computed by hand."""

import math

import pytest

from dipaco.swarm.planning.progress import (
    Estimate,
    ProgressReport,
    Rate,
    RefreshSettings,
    estimate,
    refresh_seconds,
    should_match,
)


def report(samples, rate, at=0.0, is_current=True):
    return ProgressReport(
        samples=samples, samples_per_second=rate, at_seconds=at, is_current=is_current
    )


def test_progress_is_extrapolated_from_the_time_of_each_report():
    seen = estimate([report(10, 2.0, at=0.0), report(20, 1.0, at=5.0)], 100, now_seconds=10.0)
    assert seen.samples == 10 + 20 + 20 + 5
    assert seen.seconds_left == pytest.approx((100 - 55) / 3)


def test_a_late_peers_rate_counts_and_its_samples_do_not():
    seen = estimate([report(10, 2.0), report(50, 2.0, is_current=False)], 20, now_seconds=0.0)
    assert seen.samples == 10
    assert seen.seconds_left == pytest.approx(10 / 4)


def test_without_peers_the_step_never_comes_and_refreshes_are_rare():
    seen = estimate([], 20, now_seconds=0.0)
    assert seen.seconds_left == math.inf
    assert refresh_seconds(seen, RefreshSettings()) == RefreshSettings().longest_seconds


def test_refreshes_allow_for_three_more_peers_or_a_fifth_of_the_group():
    seen = Estimate(samples=0, samples_per_second=1, seconds_left=8.0, num_peers=3)
    assert refresh_seconds(seen, RefreshSettings()) == pytest.approx(8.0 * 3 / 6)
    large = Estimate(samples=0, samples_per_second=1, seconds_left=8.0, num_peers=100)
    assert refresh_seconds(large, RefreshSettings()) == pytest.approx(8.0 * 100 / 120)


def test_a_round_is_prepared_before_it_is_due():
    soon = Estimate(samples=0, samples_per_second=1, seconds_left=4.0, num_peers=3)
    later = Estimate(samples=0, samples_per_second=1, seconds_left=6.0, num_peers=3)
    assert should_match(soon, RefreshSettings())
    assert not should_match(later, RefreshSettings())


def test_a_rate_is_unbiased_from_the_first_measurement_on():
    rate = Rate().after(10, 2.0)
    assert rate.per_second == pytest.approx(5.0)
    for _ in range(200):
        rate = rate.after(1, 1.0)
    assert rate.per_second == pytest.approx(1.0)
