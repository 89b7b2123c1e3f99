"""A leaf shows that it is in the bytes of a root; nothing else does."""

import msgspec
import pytest

from dipaco.swarm.network.merkle import LEAF_BYTES, is_in, num_leaves, open_leaves, root_of


def content_of(num_bytes):
    return bytes(number % 251 for number in range(num_bytes))


@pytest.mark.parametrize(
    "num_bytes", [0, 1, LEAF_BYTES, LEAF_BYTES + 1, *(range(20_000, 40_000, 3_777))]
)
def test_every_leaf_of_any_bytes_is_in_them_and_no_altered_one(num_bytes):
    content = content_of(num_bytes)
    root = root_of(content)
    for leaf in open_leaves(content, list(range(num_leaves(num_bytes)))):
        start = leaf.number * LEAF_BYTES
        assert leaf.content == content[start : start + LEAF_BYTES]
        assert is_in(leaf, root, num_bytes)
        altered = [
            {"content": leaf.content[:-1] + b"?"},
            {"number": leaf.number + 1},
            {"number": -1},
            {"beside": (*leaf.beside, bytes(32))},
        ]
        if leaf.beside:
            altered += [{"beside": leaf.beside[1:]}, {"beside": (bytes(32), *leaf.beside[1:])}]
        for changes in altered:
            assert not is_in(msgspec.structs.replace(leaf, **changes), root, num_bytes), changes
        assert not is_in(leaf, root_of(content + b"x"), num_bytes)


def test_a_pair_of_digests_is_no_leaf():
    content = content_of(2 * LEAF_BYTES)
    first, second = (root_of(content[at : at + LEAF_BYTES]) for at in (0, LEAF_BYTES))
    assert root_of(first + second) != root_of(content)
