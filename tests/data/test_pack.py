"""The packing law: every token of every document once, all rows full but the last."""

import dataclasses

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dipaco.data.errors import ShardDamaged
from dipaco.data.pack import ascending, load_plan, plan_rows, save_plan
from dipaco.data.tokenizer import Edges, EdgeTokens


@given(
    documents=st.lists(
        st.tuples(st.integers(0, 40), st.booleans(), st.booleans()), min_size=1, max_size=30
    ),
    tokens=st.sampled_from([None, EdgeTokens(None, 8), EdgeTokens(7, 8)]),
    row_length=st.integers(2, 17),
    seed=st.integers(0, 2**40),
)
@example(documents=[(0, True, True)] * 2, tokens=EdgeTokens(7, 8), row_length=8, seed=0)
@settings(max_examples=300)
def test_every_token_and_every_edge_is_planned_once_and_all_rows_are_full_but_the_last(
    documents, tokens, row_length, seed
):
    lengths, begins, ends = (np.array(column) for column in zip(*documents, strict=True))
    edges = None if tokens is None else Edges(tokens, begins.astype(bool), ends.astype(bool))
    plan = plan_rows(lengths, np.arange(len(lengths)), row_length, seed, edges)
    rows = [plan.row(k) for k in range(plan.num_rows)]
    has_start, has_end = tokens is not None and tokens.start is not None, tokens is not None
    wanted = [
        (document, token)
        for document, (length, begins, ends) in enumerate(documents)
        if length
        for token in range(-int(begins and has_start), length + int(ends and has_end))
    ]
    assert wanted == sorted(
        (document, token)
        for row in rows
        for document, start, length in row
        for token in range(start, start + length)
    )
    sizes = [sum(length for _, _, length in row) for row in rows]
    assert all(size == row_length for size in sizes[:-1])
    assert all(0 < size <= row_length for size in sizes[-1:])
    assert sum(sizes) == plan.num_tokens


def test_only_the_documents_asked_for_are_planned():
    plan = plan_rows(np.array([5, 6, 7, 8]), np.array([3, 1]), row_length=4, seed=0)
    assert set(plan.piece_document.tolist()) == {1, 3}


def test_the_plan_depends_on_the_seed_and_not_on_the_order_of_the_documents():
    lengths = np.full(50, 9)
    forth = plan_rows(lengths, np.arange(50), 8, seed=1)
    back = plan_rows(lengths, np.arange(50)[::-1], 8, seed=1)
    assert forth.digest() == back.digest()
    assert forth.digest() != plan_rows(lengths, np.arange(50), 8, seed=2).digest()


def test_a_saved_plan_is_loaded_with_its_edges_and_a_damaged_one_is_refused(tmp_path):
    edges, file = Edges(EdgeTokens(None, 8), *np.ones((2, 3), bool)), tmp_path / "plan.npz"
    plan = plan_rows(np.array([5, 9, 30]), np.arange(3), 8, seed=0, edges=edges)
    save_plan(plan, file)
    again = load_plan(file)
    assert (again.digest(), again.edge_tokens) == (plan.digest(), EdgeTokens(None, 8))
    assert dataclasses.replace(plan, edge_tokens=EdgeTokens(7, 8)).digest() != plan.digest()

    content, middle = file.read_bytes(), file.stat().st_size // 2
    flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    for damaged in (flipped, content[:-30]):
        file.write_bytes(damaged)
        with pytest.raises(ShardDamaged, match=r"plan\.npz"):
            load_plan(file)


def test_a_huge_shard_is_planned_in_a_few_bytes_a_piece():
    lengths = np.full(100_000, 700, dtype=np.int32)
    plan = plan_rows(lengths, np.arange(100_000), 1024, seed=0)
    num_bytes = sum(
        column.nbytes for column in (plan.piece_document, plan.piece_start, plan.piece_length)
    )
    assert num_bytes / len(plan.piece_document) == 16


@given(st.lists(st.integers(-5, 5), max_size=30))
def test_each_number_stands_once_in_ascending_order(numbers):
    assert ascending(np.array(numbers, np.int64)).tolist() == sorted(set(numbers))
