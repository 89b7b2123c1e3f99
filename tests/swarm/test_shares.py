"""Shares are the optimum of the published linear program; and cases whose solution is known."""

import numpy as np
import pytest
from scipy.optimize import linprog

from dipaco.swarm.planning.shares import Link, capped, cut, shares_of_links


def links_optimum(links):
    """The program for links that differ by direction, solved: the shortest round of reducers."""
    n = len(links)
    senders, receivers = sum(link.sends for link in links), len(links)
    rows, limits = [], []
    for i, link in enumerate(links):
        if not link.can_reduce:
            continue
        for speed, own, others in (
            (link.up, link.sends, receivers - 1),
            (link.down, 1, senders - link.sends),
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
    senders, receivers = sum(link.sends for link in links), len(links)
    return max(
        max(
            (link.sends * (1 - s) + (receivers - 1) * s) / link.up,
            (1 * (1 - s) + (senders - link.sends) * s) / link.down,
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
            )
            for i in range(rng.integers(3, 20))
        ]
        share = shares_of_links(links)
        assert share.sum() == pytest.approx(1.0)
        assert links_seconds(links, share) == pytest.approx(links_optimum(links), rel=1e-6)


def test_slices_cover_the_vector_in_order():
    slices = cut(np.array([0.5, 0.0, 0.3, 0.2]), 101)
    assert [part.start for part in slices[1:]] == [part.stop for part in slices[:-1]]
    assert (slices[0].start, slices[-1].stop) == (0, 101)
    assert slices[1].start == slices[1].stop


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        ([0.05, 0.9, 0.05], [0.25, 0.5, 0.25]),
        ([0.0, 1.0, 0.0], [0.5, 0.5, 0.0]),
        ([0.8, 0.1, 0.1], [0.8, 0.1, 0.1]),
        ([0.1, 0.4, 0.2, 0.3], [1 / 6, 2 / 7, 1 / 3, 1.5 / 7]),
    ],
    ids=["one", "alone", "the leader", "two sessions"],
)
def test_no_holder_but_the_leader_adds_up_more_than_half(share, expected):
    holders = ["", "eve", "ana", "eve"][: len(share)]
    found = capped(np.array(share), holders, 0.5)
    assert found.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(found, expected)
