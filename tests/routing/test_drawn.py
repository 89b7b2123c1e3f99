"""Paths drawn at random: equal parts, another seed another draw, whatever the text says."""

import numpy as np
import pytest

from dipaco.routing.config import RoutingConfig
from dipaco.routing.drawn import deal
from dipaco.routing.router import fit_router

DOCUMENTS = np.arange(1000, 2000)


@pytest.mark.parametrize("num_paths", [1, 3, 16])
def test_every_path_is_dealt_as_many_documents(num_paths):
    count = np.bincount(deal(DOCUMENTS, num_paths, 1, seed=0)[:, 0], minlength=num_paths)
    assert count.max() - count.min() <= 1


def test_a_document_keeps_its_path_wherever_it_stands():
    order = np.random.default_rng(0).permutation(len(DOCUMENTS))
    dealt = deal(DOCUMENTS, 4, 1, seed=0)
    np.testing.assert_array_equal(deal(DOCUMENTS[order], 4, 1, seed=0), dealt[order])


def test_several_choices_are_different_paths_and_each_choice_is_dealt_evenly():
    choices = deal(DOCUMENTS, 4, 3, seed=0)
    assert all(len(set(row)) == 3 for row in choices.tolist())
    assert (np.apply_along_axis(np.bincount, 0, choices) == 250).all()
    np.testing.assert_array_equal(choices[:, :1], deal(DOCUMENTS, 4, 1, seed=0))


def test_neighbours_and_seeds_have_nothing_to_do_with_each_other():
    dealt, other = (deal(DOCUMENTS, 4, 1, seed)[:, 0] for seed in (0, 7))
    for one, two in ((dealt, other), (dealt[1:], dealt[:-1])):
        table = np.histogram2d(one, two, bins=4)[0]
        assert (np.abs(table - 62.5) < 30).all()  # four standard deviations


def test_prompts_are_drawn_evenly_and_equal_ones_alike(heaps):
    router = fit_router(RoutingConfig(kind="random"), heaps(400), (2, 2), seed=3)
    features = heaps(4000, seed=1)
    paths = router.assign(features)[:, 0]
    assert (np.abs(np.bincount(paths, minlength=4) - 1000) < 110).all()
    np.testing.assert_array_equal(router.assign(features[::-1])[::-1, 0], paths)
    other = fit_router(RoutingConfig(kind="random"), heaps(400), (2, 2), seed=4)
    assert 0.6 < np.mean(other.assign(features)[:, 0] != paths) < 0.9
