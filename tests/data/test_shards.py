"""What a shard holds out for early stopping: decided for each text alone."""

import types

import numpy as np
import pytest

from dipaco.data.shards import hold_out

LENGTHS = np.tile([40, 20, 64, 33], 500)
CORPUS = types.SimpleNamespace(lengths=LENGTHS, texts=np.arange(2000))
SHORTEST = 33


def held(documents, share=0.1):
    kept, held_out = hold_out(CORPUS, np.asarray(documents), share, SHORTEST)
    assert not set(kept) & set(held_out)
    neither = sorted(set(documents) - {*kept, *held_out})
    assert (LENGTHS[neither] < SHORTEST).all()
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


@pytest.mark.parametrize("documents", [range(2000), range(0, 2000, 3)])
def test_the_pieces_of_a_text_are_held_out_together(documents):
    """A piece that trains a path tells it what the others are like."""
    texts = np.repeat(np.arange(200), 10)
    corpus = types.SimpleNamespace(lengths=LENGTHS, texts=texts)
    kept, held_out = hold_out(corpus, np.asarray(documents), 0.1, SHORTEST)
    assert len(held_out)
    assert len(kept) >= 0.5 * len(documents)
    assert not set(texts[kept]) & set(texts[held_out])


def test_of_a_single_text_one_piece_is_held_out_and_the_others_train():
    texts = np.full(2000, next(text for text in range(40) if text not in held(range(2000))))
    corpus = types.SimpleNamespace(lengths=LENGTHS, texts=texts)
    kept, held_out = hold_out(corpus, np.arange(10), 0.1, SHORTEST)
    assert (len(kept), len(held_out)) == (9, 1)


@pytest.mark.parametrize("is_drawn", [True, False])
@pytest.mark.parametrize("sizes", [[200], [200, 200], [300, 90, 60], [2]])
def test_a_shard_of_few_long_texts_holds_out_about_the_share_and_trains_on_the_rest(
    sizes, is_drawn
):
    drawn = held(range(2000), share=0.05)
    texts = [text for text in range(0, 2000, 2) if (text in drawn) == is_drawn][: len(sizes)]
    text_N = np.repeat(texts, sizes)
    corpus = types.SimpleNamespace(lengths=np.full(len(text_N), 40), texts=text_N)
    kept, held_out = hold_out(corpus, np.arange(len(text_N)), 0.05, SHORTEST)
    assert len(held_out) == max(round(0.05 * len(text_N)), 1)
    assert len(kept) + len(held_out) == len(text_N)


def test_what_a_shard_of_few_long_texts_holds_out_the_base_model_does_not_train_on_either():
    """Of texts in the order that is the same everywhere, both take the first pieces."""
    text_N = np.repeat(np.arange(5), 200)
    corpus = types.SimpleNamespace(lengths=np.full(1000, 40), texts=text_N)
    _, of_the_base = hold_out(corpus, np.arange(1000), 0.05, SHORTEST)
    (book,) = set(text_N[of_the_base])
    assert len(of_the_base) == 50
    _, held_out = hold_out(corpus, np.flatnonzero(text_N == book), 0.05, SHORTEST)
    assert len(held_out) == 10
    assert set(held_out) <= set(of_the_base)


def test_short_texts_that_are_drawn_are_held_out_also_where_they_are_more_than_twice_the_share():
    everything = held(range(2000), share=0.02)
    shards = [range(first, first + 50) for first in range(0, 2000, 50)]
    (shard, *_) = (shard for shard in shards if len(everything & {*shard}) > 2)
    assert held(shard, share=0.02) == everything & {*shard}


def test_a_share_of_zero_holds_out_nothing():
    assert held(range(2000), share=0.0) == set()
