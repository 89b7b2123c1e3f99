import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dipaco.routing import capacity
from dipaco.routing.capacity import balancing_prices, bounds


def counts(cost_NP, price_P):
    return np.bincount((cost_NP + price_P).argmin(axis=1), minlength=cost_NP.shape[1])


@settings(max_examples=40)
@given(
    num_paths=st.sampled_from([2, 3, 5]),
    slack=st.integers(0, 5),
    crowding=st.floats(0, 4),
    seed=st.integers(0, 2**32 - 1),
)
def test_no_path_gets_more_than_its_bound_nor_less(num_paths, slack, crowding, seed):
    random = np.random.default_rng(seed)
    cost_NP = random.exponential(size=(30, num_paths)) + crowding * np.arange(num_paths)
    least, most = 30 // num_paths - slack, -(-30 // num_paths) + slack
    count_P = counts(cost_NP, balancing_prices(cost_NP, least, most))
    assert count_P.min() >= least
    assert count_P.max() <= most


def test_prices_are_zero_where_there_is_room():
    cost_NP = np.random.default_rng(0).random((20, 4))
    assert not balancing_prices(cost_NP, 0, 20).any()


@pytest.mark.parametrize("seed", range(5))
def test_the_assignment_is_the_cheapest_of_all_that_keep_the_bound(seed):
    cost_NP = np.random.default_rng(seed).random((6, 2)) + np.array([0, 0.4])
    chosen = (cost_NP + balancing_prices(cost_NP, 3, 3)).argmin(axis=1)
    cheapest = min(
        (
            paths
            for paths in map(np.array, itertools.product(range(2), repeat=6))
            if paths.sum() == 3
        ),
        key=lambda paths: cost_NP[np.arange(6), paths].sum(),
    )
    np.testing.assert_array_equal(chosen, cheapest)


def test_an_excess_moves_through_the_path_between():
    """Two heaps on a line and three paths: the crowded left one can only be relieved in a chain."""
    at_N = np.array([*np.linspace(0, 1, 60), *np.linspace(10, 11, 20)])
    cost_NP = (at_N[:, None] - np.array([0.5, 10.5, 100.0])) ** 2
    assert sorted(counts(cost_NP, balancing_prices(cost_NP, 26, 27))) == [26, 27, 27]


def test_every_choice_is_strict():
    cost_NP = np.random.default_rng(1).random((200, 8)) + np.arange(8) * 0.3
    total_NP = np.sort(cost_NP + balancing_prices(cost_NP, 20, 30), axis=1)
    assert (total_NP[:, 1] - total_NP[:, 0]).min() > 1e-7


@pytest.mark.parametrize("seed", range(6))
def test_bounds_are_met_with_repeated_documents_too(seed):
    """Groups of up to eight equal ones, as texts that begin alike are: none is separated, and there
    is room for whole groups within the bounds.
    """
    random = np.random.default_rng(seed)
    repeats = np.where(np.arange(150) % 5 == 0, random.integers(2, 9, 150), 1)
    cost_NP = np.repeat(random.exponential(size=(150, 8)) + np.arange(8) * 0.4, repeats, axis=0)
    mean = len(cost_NP) / 8
    least, most = int(0.5 * mean), int(1.25 * mean)
    count_P = counts(cost_NP, balancing_prices(cost_NP, least, most))
    assert least <= count_P.min() <= count_P.max() <= most


def test_bounds_too_close_to_be_tighter_are_met_if_whole_groups_allow_it():
    cost_NP = np.repeat(np.random.default_rng(0).exponential(size=(20, 5)), 2, axis=0)
    np.testing.assert_array_equal(counts(cost_NP, balancing_prices(cost_NP, 8, 8)), [8] * 5)


def test_equal_documents_cannot_be_separated_and_do_no_harm():
    cost_NP = np.concatenate(
        [np.tile([0.0, 1.0, 2.0], (20, 1)), np.random.default_rng(0).random((10, 3))]
    )
    price_P = balancing_prices(cost_NP, 0, 10)
    assert np.isfinite(price_P).all()
    assert counts(cost_NP, price_P).max() >= 20
    assert np.isfinite(balancing_prices(np.ones((6, 3)), 2, 2)).all()


@pytest.mark.parametrize(
    ("documents", "num_paths", "equal"), [(4000, 16, 1200), (1000, 64, 30), (551, 16, 50)]
)
@pytest.mark.parametrize("seed", range(2))
def test_more_equal_documents_than_a_path_may_have_leave_no_path_below_the_floor(
    documents, num_paths, equal, seed, monkeypatch
):
    random = np.random.default_rng(seed)
    cost_NP = random.normal(size=(documents, num_paths)) + 0.3 * random.normal(size=num_paths)
    cost_NP[:equal] = cost_NP[0]
    home = cost_NP[0].argmin()
    tries = []

    def counted(*arguments):
        tries.append(1)
        return move(*arguments)

    move = capacity._move_along_chains
    monkeypatch.setattr(capacity, "_move_along_chains", counted)
    least, most = bounds(documents, num_paths, 0.5, 1.25)
    count_P = counts(cost_NP, balancing_prices(cost_NP, least, most))
    assert count_P.min() >= least
    assert equal <= count_P[home] <= equal + most
    assert np.delete(count_P, home).max() <= most
    assert len(tries) <= 3, "more take long"


def test_of_tries_that_miss_the_bounds_an_empty_path_is_the_worst_and_one_too_full_the_least():
    least_P, most_P = np.full(3, 4), np.full(3, 6)
    tries = [[4, 4, 9], [3, 4, 5], [3, 6, 7], [2, 5, 5], [0, 6, 6]]  # the best first
    missed = [capacity._missed(np.array(count_P), least_P, most_P) for count_P in tries]
    assert missed == sorted(missed)
    assert capacity._missed(np.array([4, 5, 6]), least_P, most_P) == (0, 0, 0)


@pytest.mark.parametrize("seed", range(2))
def test_a_chain_of_moves_does_not_go_round_where_moves_cost_as_much_as_they_bring(
    seed, monkeypatch
):
    """Documents that may go to one path each: what leaves it costs the same wherever it goes, and
    as much less on its way back.
    """
    random, cheapest_chain = np.random.default_rng(seed), capacity._cheapest_chain
    chains = []

    def chain_of(detour_PP, givers, takers):
        chain = cheapest_chain(detour_PP, givers, takers)
        assert givers[chain[0]]
        assert takers[chain[-1]]
        assert len(set(chain)) == len(chain)
        chains.append(chain)
        return chain

    monkeypatch.setattr(capacity, "_cheapest_chain", chain_of)
    weight_P = random.dirichlet(np.ones(8))
    own_N = random.choice(8, 1000, p=weight_P)
    cost_N = random.gamma(5, 10, 1000)
    cost_NP = np.repeat(cost_N[:, None] + 8, 8, axis=1)
    cost_NP[np.arange(1000), own_N] = cost_N
    balancing_prices(cost_NP, *bounds(1000, 8, 0.5, 1.25))
    assert chains
