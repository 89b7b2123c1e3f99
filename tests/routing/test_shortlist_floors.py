"""Floors that can be met within shortlists, held to Hall's condition on all sets of paths."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dipaco.routing.shortlist_floors import reachable_floors


def sets_of(paths):
    return itertools.chain.from_iterable(
        itertools.combinations(paths, size) for size in range(1, len(paths) + 1)
    )


@settings(max_examples=60)
@given(
    num_paths=st.integers(1, 5),
    compared=st.integers(1, 5),
    skew=st.floats(0, 3),
    share=st.floats(0, 1),
    seed=st.integers(0, 2**32 - 1),
)
def test_they_can_be_met_together_and_none_could_be_higher_but_for_one_that_is_no_higher(
    num_paths, compared, skew, share, seed
):
    random = np.random.default_rng(seed)
    rank_NP = random.normal(size=(30, num_paths)) + skew * np.arange(num_paths)
    shortlist = np.argsort(rank_NP, axis=1)[:, :compared]
    least = int(share * 30 / num_paths)
    floor_P = reachable_floors(shortlist, num_paths, least)
    assert floor_P.max(initial=0) <= least

    def spare(paths):
        """Documents that have one of the paths in their shortlist, beyond the floors of all."""
        return int(np.isin(shortlist, paths).any(axis=1).sum()) - floor_P[list(paths)].sum()

    for paths in sets_of(range(num_paths)):
        assert spare(paths) >= 0, "Hall: as many documents as places"
    for path in np.flatnonzero(floor_P < least):
        no_higher = [other for other in range(num_paths) if floor_P[other] <= floor_P[path] + 1]
        assert any(path in paths and spare(paths) == 0 for paths in sets_of(no_higher))


@pytest.mark.parametrize("compared", [2, 3])
def test_where_every_path_can_have_the_floor_it_is_the_floor(compared):
    shortlist = (np.arange(40)[:, None] + np.arange(compared)) % 5
    np.testing.assert_array_equal(reachable_floors(shortlist, 5, 8), [8] * 5)


def test_a_path_gets_the_last_free_document_by_a_chain_of_others_that_give_one_up():
    """Four documents and four places: the first that each path is named by is also another's."""
    shortlist = np.array([[0, 1], [1, 2], [2, 3], [0, 0]])
    np.testing.assert_array_equal(reachable_floors(shortlist, 4, 1), [1, 1, 1, 1])


def test_a_path_in_no_shortlist_has_no_floor():
    assert reachable_floors(np.array([[0, 1]] * 10), 3, 3).tolist() == [3, 3, 0]
    assert reachable_floors(np.zeros((0, 2), int), 3, 0).tolist() == [0, 0, 0]
