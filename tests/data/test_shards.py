"""What a shard holds out for early stopping: decided for each document alone."""

import types

import numpy as np
import pytest

from dipaco.data.shards import hold_out

LENGTHS = np.tile([40, 20, 64, 33], 500)
CORPUS = types.SimpleNamespace(lengths=LENGTHS)
SHORTEST = 33


def held(documents, share=0.1):
    kept, held_out = hold_out(CORPUS, np.asarray(documents), share, SHORTEST)
    assert sorted([*kept, *held_out]) == sorted(set(documents))
    assert (np.diff(kept) > 0).all()
    assert (np.diff(held_out) > 0).all()
    return set(held_out.tolist())


def test_about_the_share_of_the_documents_that_are_long_enough_is_held_out():
    everything = held(range(2000))
    assert len(everything) == pytest.approx(0.1 * 1500, rel=0.25)
    assert (LENGTHS[sorted(everything)] >= SHORTEST).all()


def test_a_document_is_held_out_in_every_shard_or_in_none():
    everything = held(range(2000))
    for path in range(4):
        shard = np.random.default_rng(path).choice(2000, 600, replace=False).tolist()
        assert held(shard) == everything & set(shard)


def test_a_shard_that_would_hold_out_none_holds_out_one_if_it_can():
    few = [document for document in range(40) if document not in held(range(2000))]
    assert len(held(few)) == 1
    assert held([1, 5, 9]) == set(), "all of them are too short"


def test_a_share_of_zero_holds_out_nothing():
    assert held(range(2000), share=0.0) == set()
