"""The packing law: every token of every document once, all rows full but the last."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dipaco.data.errors import ShardDamaged
from dipaco.data.pack import RowPlan, ascending, load_plan, plan_rows, save_plan

many_lengths = st.lists(st.integers(0, 40), min_size=1, max_size=30)


def plan_of(lengths: list[int], row_length: int = 8, seed: int = 0) -> RowPlan:
    return plan_rows(np.array(lengths), np.arange(len(lengths)), row_length, seed)


@given(lengths=many_lengths, row_length=st.integers(2, 17), seed=st.integers(0, 2**40))
@settings(max_examples=200)
def test_every_token_of_every_document_is_planned_exactly_once(lengths, row_length, seed):
    plan = plan_of(lengths, row_length, seed)
    seen = [np.zeros(length, dtype=int) for length in lengths]
    for k in range(plan.num_rows):
        for document, start, length in plan.row(k):
            seen[document][start : start + length] += 1
    assert all((counts == 1).all() for counts in seen)


@given(lengths=many_lengths, row_length=st.integers(2, 17))
@settings(max_examples=100)
def test_all_rows_are_full_but_the_last(lengths, row_length):
    plan = plan_of(lengths, row_length)
    sizes = [sum(length for _, _, length in plan.row(k)) for k in range(plan.num_rows)]
    assert all(size == row_length for size in sizes[:-1])
    assert all(0 < size <= row_length for size in sizes[-1:])
    assert sum(sizes) == sum(lengths) == plan.num_tokens


def test_only_the_documents_asked_for_are_planned():
    plan = plan_rows(np.array([5, 6, 7, 8]), np.array([3, 1]), row_length=4, seed=0)
    assert set(plan.piece_document.tolist()) == {1, 3}


def test_the_plan_depends_on_the_seed_and_not_on_the_order_of_the_documents():
    lengths = np.full(50, 9)
    forth = plan_rows(lengths, np.arange(50), 8, seed=1)
    back = plan_rows(lengths, np.arange(50)[::-1], 8, seed=1)
    assert forth.digest() == back.digest()
    assert forth.digest() != plan_rows(lengths, np.arange(50), 8, seed=2).digest()


def test_documents_are_shuffled():
    plan = plan_of([8] * 100)
    order = plan.piece_document.tolist()
    assert sorted(order) == list(range(100))
    assert order != sorted(order)


def test_no_documents_make_no_rows():
    plan = plan_of([0, 0])
    assert plan.num_rows == 0
    assert plan.num_tokens == 0


def test_a_saved_plan_is_loaded_and_a_flipped_byte_is_refused(tmp_path):
    plan, file = plan_of([5, 9, 30]), tmp_path / "plan.npz"
    save_plan(plan, file)
    assert load_plan(file).digest() == plan.digest()

    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
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
