"""Which shards are outside their bounds, and that it is said with figures."""

import dataclasses

import pytest

from dipaco.routing.config import RoutingConfig
from dipaco.routing.shard_sizes import outside_bounds, sentence_on_bounds, wider_router_fraction

BOUNDED = RoutingConfig(capacity=1.25, floor=0.5)  # of 400 documents: 50 to 125


@pytest.mark.parametrize(
    ("documents", "outside"),
    [
        ([125, 125, 100, 50], []),
        ([126, 125, 99, 50], [0]),
        ([125, 125, 101, 49], [3]),
        ([330, 70, 0, 0], [0, 2, 3]),
        ([33, 33, 33, 34], []),  # 133 documents: at most 42, whole ones
    ],
)
def test_a_shard_is_outside_when_a_whole_document_is(documents, outside):
    assert outside_bounds(BOUNDED, documents) == outside
    assert bool(sentence_on_bounds(BOUNDED, documents)) == bool(outside)


def test_what_bounds_nothing_is_not_spoken_of():
    documents = [400, 0, 0, 0]
    assert outside_bounds(RoutingConfig(capacity=None, floor=0.0), documents) == []
    assert outside_bounds(RoutingConfig(kind="random"), documents) == []
    target = RoutingConfig(target_share=(0.7, 0.1, 0.1, 0.1), alternations=(1,))
    assert outside_bounds(target, documents, phase=1) == []
    assert outside_bounds(target, documents) == [0, 1, 2, 3]


def test_the_sentence_has_the_figures_the_reason_and_what_helps():
    said = sentence_on_bounds(BOUNDED, [131, 121, 100, 48])
    assert said.startswith(
        "path 0 32.8%, path 3 12.0% of the training documents, where `routing.floor` and "
        "`routing.capacity` mean 12.5% to 31.2%: "
    )
    assert "data.router_fraction" in said
    assert "and 248 more of the training" in sentence_on_bounds(BOUNDED, [1000] * 128 + [1] * 128)


def test_with_overlap_the_sentence_says_that_first_choices_are_bounded():
    overlapping = dataclasses.replace(BOUNDED, overlap=2)
    said = sentence_on_bounds(overlapping, [262, 242, 200, 96])
    assert said.startswith(
        "path 0 32.8%, path 3 12.0% of the places in all shards, of which every training document "
        "takes 2, where `routing.floor` and `routing.capacity` mean 12.5% to 31.2%: "
    )
    unbounded = dataclasses.replace(overlapping, capacity=None)
    assert "mean 12.5% to 50.0%" in sentence_on_bounds(unbounded, [400, 200, 104, 96]), (
        "all of them"
    )
    assert "these bounds hold for first choices" in said
    assert "`routing.overlap` adds are not bounded" in said
    assert "choices" not in sentence_on_bounds(BOUNDED, [131, 121, 100, 48])


def test_a_wider_router_fraction_is_twice_or_gives_each_path_fifty_documents():
    assert wider_router_fraction(0.05, 100_000, 4) == 0.1
    assert wider_router_fraction(0.05, 1_000, 4) == 0.2
    assert wider_router_fraction(0.05, 100, 6) == 0.3
    assert wider_router_fraction(0.3, 100, 6) is None
