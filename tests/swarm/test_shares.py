"""Shares are the optimum of the published linear program; and cases whose solution is known."""

import time

import numpy as np
import pytest
from scipy.optimize import linprog

from dipaco.swarm.planning.shares import Link, cut, round_seconds, shares, shares_of_links


def optimum(bandwidths):
    """The published program, solved: the shortest round."""
    b = np.asarray(bandwidths, float)
    n = len(b)
    loads = np.zeros((n, n + 1))
    loads[np.arange(n), np.arange(n)] = n - 2
    loads[:, -1] = -b
    can_reduce = b > 0
    bounds = [(0, 1 if can else 0) for can in can_reduce] + [(0, None)]
    solved = linprog(
        np.eye(n + 1)[-1],
        A_ub=loads[can_reduce],
        b_ub=-np.ones(can_reduce.sum()),
        A_eq=[[1.0] * n + [0.0]],
        b_eq=[1.0],
        bounds=bounds,
    )
    assert solved.success
    return solved.fun


def random_bandwidths(rng):
    size = rng.integers(3, 40)
    b = np.exp(rng.normal(0, rng.uniform(0.1, 2.5), size))
    b[rng.random(size) < rng.choice([0.0, 0.3, 0.8])] = 0.0
    if not b.any():
        b[rng.integers(size)] = 1.0
    return b


def test_shares_are_the_linear_programs_optimum_in_random_cases():
    rng = np.random.default_rng(0)
    for _ in range(200):
        b = random_bandwidths(rng)
        share = shares(b)
        assert share.sum() == pytest.approx(1.0)
        assert (share >= 0).all()
        assert not share[b == 0].any()
        assert round_seconds(b, share) == pytest.approx(optimum(b), rel=1e-6)


def links_optimum(links):
    """The program for links that differ by direction, solved: the shortest round of reducers."""
    n = len(links)
    senders, receivers = (sum(getattr(link, x) for link in links) for x in ("sends", "receives"))
    rows, limits = [], []
    for i, link in enumerate(links):
        if not link.can_reduce:
            continue
        for speed, own, others in (
            (link.up, link.sends, receivers - link.receives),
            (link.down, link.receives, senders - link.sends),
        ):
            row = np.zeros(n + 1)
            row[i], row[-1] = others - own, -speed
            rows.append(row)
            limits.append(-float(own))
    bounds = [(0, 1 if link.can_reduce else 0) for link in links] + [(0, None)]
    cost = np.eye(n + 1)[-1]
    solved = linprog(cost, rows, limits, [[1.0] * n + [0.0]], [1.0], bounds)
    assert solved.success
    return solved.fun


def links_seconds(links, share):
    senders, receivers = (sum(getattr(link, x) for link in links) for x in ("sends", "receives"))
    return max(
        max(
            (link.sends * (1 - s) + (receivers - link.receives) * s) / link.up,
            (link.receives * (1 - s) + (senders - link.sends) * s) / link.down,
        )
        for link, s in zip(links, share, strict=True)
        if link.can_reduce
    )


def test_shares_of_links_that_differ_by_direction_are_optimal_too():
    rng = np.random.default_rng(1)
    for _ in range(60):
        links = [
            Link(
                up=float(np.exp(rng.normal())),
                down=float(np.exp(rng.normal())),
                can_reduce=i == 0 or bool(rng.random() < 0.7),
                sends=bool(i < 2 or rng.random() < 0.8),
                receives=bool(i < 2 or rng.random() < 0.9),
            )
            for i in range(rng.integers(3, 20))
        ]
        share = shares_of_links(links)
        assert share.sum() == pytest.approx(1.0)
        assert links_seconds(links, share) == pytest.approx(links_optimum(links), rel=1e-6)


def test_on_symmetric_links_the_bisection_takes_as_long_as_the_closed_form():
    rng = np.random.default_rng(2)
    for _ in range(100):
        b = np.exp(rng.normal(0, 1, rng.integers(3, 20)))
        by_bisection = shares_of_links([Link(up=x, down=x) for x in b])
        assert round_seconds(b, by_bisection) == pytest.approx(round_seconds(b, shares(b)))


def test_equal_links_make_an_all_reduce():
    np.testing.assert_allclose(shares(np.ones(5)), 0.2)


def test_one_reducer_is_a_parameter_server():
    np.testing.assert_array_equal(shares(np.array([0.0, 7.0, 0.0, 0.0])), [0, 1, 0, 0])


def test_a_very_slow_link_adds_up_nothing_and_a_fast_one_most():
    share = shares(np.array([100.0, 10.0, 10.0, 0.5]))
    assert share[3] == 0
    assert share[0] > 0.5


def test_slices_cover_the_vector_in_order():
    slices = cut(np.array([0.5, 0.0, 0.3, 0.2]), 101)
    assert [part.start for part in slices[1:]] == [part.stop for part in slices[:-1]]
    assert (slices[0].start, slices[-1].stop) == (0, 101)
    assert slices[1].start == slices[1].stop


def test_sixty_four_shares_are_computed_without_a_linear_programs_time():
    b = np.exp(np.random.default_rng(3).normal(0, 1, 64))
    shares(b)
    fastest = min(_seconds(b) for _ in range(20))
    # 50 us on a quiet machine; this one may be busy, and the linear program takes 600,000.
    assert fastest < 5e-3


def _seconds(b):
    started = time.perf_counter()
    for _ in range(10):
        shares(b)
    return (time.perf_counter() - started) / 10
