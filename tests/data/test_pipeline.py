"""Batches: random access equals iteration, and a row is the documents that were planned."""

import numpy as np
import pytest

from dipaco.data.config import CorpusConfig
from dipaco.data.errors import EmptyShard
from dipaco.data.pack import plan_rows
from dipaco.data.pipeline import Batches, Rows
from dipaco.data.prepare import prepare
from dipaco.data.shards import build_shard, domain_table
from dipaco.data.windows import first_tokens

LENGTH = 48


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    config = CorpusConfig(sources=("toy:?documents=60",), vocab_size=300, processes=1)
    return prepare(config, tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def plan(corpus):
    return plan_rows(corpus.lengths, corpus.documents("train"), LENGTH, seed=3)


def assert_equal(one, other):
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])


def test_iterating_from_any_step_gives_the_batches_of_random_access(corpus, plan):
    batches = Batches(corpus, plan, batch_size=4, seed=0)
    epoch = plan.num_rows // 4
    for start in (0, 3, epoch - 1):  # the last goes over into the second epoch
        for step, batch in enumerate(batches.iterate(start, 4), start=start):
            assert_equal(batch, batches.at(step))
        assert step == start + 3


def test_a_batch_is_the_same_for_every_reader_at_any_time(corpus, plan):
    first, second = (Batches(corpus, plan, batch_size=4, seed=7) for _ in range(2))
    first.at(0)
    assert_equal(first.at(11), second.at(11))
    assert first.fingerprint == second.fingerprint


def test_an_epoch_holds_every_row_once_and_the_next_is_in_another_order(corpus, plan):
    batches = Batches(corpus, plan, batch_size=1, seed=0)
    rows = Rows(corpus, plan)
    wanted = sorted(rows[k]["tokens"].tobytes() for k in range(len(rows)))
    epochs = [
        [batches.at(step)["tokens"].tobytes() for step in range(e * len(rows), (e + 1) * len(rows))]
        for e in range(2)
    ]
    assert sorted(epochs[0]) == sorted(epochs[1]) == wanted
    assert epochs[0] != epochs[1]


def test_batches_of_one_row_are_iterated_as_others_are(corpus, plan):
    one, four = (Batches(corpus, plan, batch_size=size, seed=7) for size in (1, 4))
    rows = np.concatenate([batch["tokens"] for batch in one.iterate(0, 8)])
    assert np.array_equal(rows, np.concatenate([b["tokens"] for b in four.iterate(0, 2)]))


def test_the_fingerprint_tells_data_seed_and_batch_size_apart(corpus, plan):
    other = plan_rows(corpus.lengths, corpus.documents("train"), LENGTH, seed=4)
    prints = {
        Batches(corpus, plan, 4, seed=0).fingerprint,
        Batches(corpus, plan, 4, seed=1).fingerprint,
        Batches(corpus, plan, 2, seed=0).fingerprint,
        Batches(corpus, other, 4, seed=0).fingerprint,
    }
    assert len(prints) == 4


def test_machines_that_take_turns_have_the_rows_of_one_with_a_larger_batch(corpus, plan):
    machines = [Batches(corpus, plan, batch_size=4, seed=0, turn=(k, 3)) for k in range(3)]
    one = Batches(corpus, plan, batch_size=12, seed=0)
    for step in (0, 5, plan.num_rows // 12 + 1):  # the last is of the second epoch
        dealt = [machine.at(step) for machine in machines]
        for name, rows in one.at(step).items():
            np.testing.assert_array_equal(np.concatenate([batch[name] for batch in dealt]), rows)
    assert len({each.fingerprint for each in (*machines, one)}) == 4


def test_the_seed_changes_the_order_of_the_rows(corpus, plan):
    one, other = (Batches(corpus, plan, 4, seed=seed).at(0)["tokens"] for seed in (0, 1))
    assert not np.array_equal(one, other)


def test_a_row_holds_its_pieces_with_their_segments_and_positions(corpus, plan):
    rows = Rows(corpus, plan)
    k = next(k for k in range(len(rows)) if len(plan.row(k)) > 1)
    row, place = rows[k], 0
    for number, (document, start, length) in enumerate(plan.row(k), start=1):
        here = slice(place, place + length)
        (tokens,) = corpus.tokens([document])
        np.testing.assert_array_equal(row["tokens"][here], tokens[start : start + length])
        assert (row["segments"][here] == number).all()
        np.testing.assert_array_equal(row["positions"][here], np.arange(length))
        place += length
    assert all(values.dtype == np.int32 for values in row.values())


def test_only_the_last_row_is_padded_with_segment_zero(corpus, plan):
    rows = Rows(corpus, plan)
    assert all((rows[k]["segments"] > 0).all() for k in range(len(rows) - 1))
    padding = LENGTH * len(rows) - plan.num_tokens
    assert (rows[len(rows) - 1]["segments"] == 0).sum() == padding


def test_domains_are_counted_by_path(corpus):
    by_domain = [np.flatnonzero(corpus.domains == d) for d in range(4)]
    shards = [build_shard(corpus, d, by_domain[d], LENGTH, seed=0) for d in range(4)]
    np.testing.assert_array_equal(domain_table(corpus, shards), 15 * np.eye(4, dtype=int))


def test_an_empty_shard_names_its_path(corpus):
    with pytest.raises(EmptyShard, match="Path 5 has 0 documents"):
        build_shard(corpus, 5, np.array([], dtype=int), LENGTH, seed=0)


def test_first_tokens_are_padded_and_counted(corpus):
    numbers = corpus.documents("test")[:3]
    tokens, lengths = first_tokens(corpus, numbers, 1000)
    for row, document in enumerate(corpus.tokens(numbers)):
        assert lengths[row] == len(document)
        np.testing.assert_array_equal(tokens[row, : len(document)], document)
        assert (tokens[row, len(document) :] == 0).all()
    assert first_tokens(corpus, numbers, 5)[1].tolist() == [5, 5, 5]
