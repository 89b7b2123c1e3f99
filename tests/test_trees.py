"""Functions on trees: flatten and back, digest, difference."""

import copy

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dipaco import trees

TREE = {
    "head": {"table": np.arange(6, dtype=np.float32).reshape(2, 3)},
    "block_00": {"norm": np.ones(3, np.float32), "query": {"w": np.zeros((2, 2), np.int32)}},
}

names = st.text("abc_0", min_size=1, max_size=3)
leaves = st.integers(0, 5).map(lambda size: np.arange(size, dtype=np.float32))
nested = st.recursive(
    leaves, lambda child: st.dictionaries(names, child, min_size=1, max_size=3), max_leaves=6
)


def test_flatten_names_leaves_by_their_path_in_sorted_order():
    assert [name for name, _ in trees.flatten(TREE)] == [
        "block_00.norm",
        "block_00.query.w",
        "head.table",
    ]


def listed(tree):
    """The tree with lists for arrays, to be compared as a whole."""
    return {name: listed(tree[name]) for name in tree} if isinstance(tree, dict) else tree.tolist()


@given(st.dictionaries(names, nested, max_size=3))
def test_unflatten_is_the_inverse_of_flatten(tree):
    assert listed(trees.unflatten(dict(trees.flatten(tree)))) == listed(tree)


def test_bytes_are_counted_over_all_leaves():
    assert trees.num_bytes(TREE) == 4 * (6 + 3 + 4)


def test_the_digest_does_not_depend_on_the_order_of_names_nor_on_strides():
    turned = {
        "block_00": dict(reversed(TREE["block_00"].items())),
        "head": {"table": np.asfortranarray(TREE["head"]["table"])},
    }
    assert trees.digest(turned) == trees.digest(TREE)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": np.float32([1, 2])}, {"b": np.float32([1, 2])}),
        ({"a": np.float32([1, 2])}, {"a": np.float32([1, 3])}),
        ({"a": np.float32([0.0])}, {"a": np.float32([-0.0])}),
        ({"a": np.zeros(2, np.float32)}, {"a": np.zeros(2, np.int32)}),
        ({"a": np.zeros((2, 3))}, {"a": np.zeros((3, 2))}),
        ({"a": np.zeros(())}, {"a": np.zeros(1)}),
        ({"a": np.zeros(2, ml_dtypes.bfloat16)}, {"a": np.zeros(2, np.float16)}),
        ({"a": np.zeros(2, ml_dtypes.float8_e4m3fn)}, {"a": np.zeros(2, ml_dtypes.float8_e5m2)}),
        ({"a": np.zeros(0), "b": np.zeros(1)}, {"a": np.zeros(1), "b": np.zeros(0)}),
    ],
    ids=["name", "value", "sign of zero", "type", "shape", "scalar", "bf16", "f8", "size"],
)
def test_the_digest_tells_trees_apart(one, other):
    assert trees.digest(one) != trees.digest(other)


def test_scalars_and_empty_trees_have_digests():
    assert trees.digest({"step": np.int32(7)}) == trees.digest({"step": np.array(7, np.int32)})
    assert len(trees.digest({})) == 32


def changed(change):
    tree = copy.deepcopy(TREE)
    change(tree)
    return tree


@pytest.mark.parametrize(
    ("other", "phrase"),
    [
        (changed(lambda tree: tree.pop("head")), "`head.table` is missing"),
        (changed(lambda tree: tree.update(bias=np.ones(1))), "`bias` was not expected"),
        (
            changed(lambda tree: tree["block_00"].update(norm=np.ones(4, np.float32))),
            "`block_00.norm` is float32[4], expected float32[3]",
        ),
        (
            changed(lambda tree: tree["block_00"].update(norm=np.ones(3, np.float64))),
            "`block_00.norm` is float64[3], expected float32[3]",
        ),
        (changed(lambda tree: tree["head"].update(table=np.zeros((2, 3), np.float32))), None),
    ],
)
def test_a_difference_is_a_phrase_and_values_make_no_difference(other, phrase):
    assert trees.difference(TREE, other) == phrase
