"""Functions on trees of arrays that JAX lacks: names of leaves, sizes, digests, differences.

A tree is a nested mapping with arrays as leaves. NumPy only, so that rooms without JAX can check a
digest.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

SEPARATOR = "."


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields (`block_00.attention.query`, leaf) in sorted order."""
    for name in sorted(tree):
        value = tree[name]
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{name}{SEPARATOR}")
        else:
            yield f"{prefix}{name}", value


def unflatten(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `flatten`."""
    tree: dict[str, Any] = {}
    for path, leaf in leaves.items():
        *parents, name = path.split(SEPARATOR)
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = leaf
    return tree


def outline(tree: Mapping[str, Any]) -> dict[str, Any]:
    """A tree with the same names, shapes and types. Its leaves are zeros that take no memory."""
    return unflatten(
        {
            path: np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape)
            for path, leaf in flatten(tree)
        }
    )


def num_bytes(tree: Mapping[str, Any]) -> int:
    """Bytes of all leaves together."""
    return sum(leaf.nbytes for _, leaf in flatten(tree))


def digest(tree: Mapping[str, Any]) -> str:
    """Digest of names, types, shapes and values: two trees are equal bit for bit if theirs are."""
    import xxhash  # here: a training step needs trees, and no digests

    state = xxhash.xxh3_128()
    for path, leaf in flatten(tree):
        array = np.asarray(leaf)
        state.update(f"{path}:{array.dtype.str}:{array.shape}".encode())
        state.update(array.reshape(-1).view(np.uint8).data if array.size else b"")
    return state.hexdigest()


def difference(expected: Mapping[str, Any], got: Mapping[str, Any]) -> str | None:
    """The difference of `got` from `expected` in names, shapes or types as a phrase, or None."""
    want = {path: (tuple(leaf.shape), str(leaf.dtype)) for path, leaf in flatten(expected)}
    have = {path: (tuple(leaf.shape), str(leaf.dtype)) for path, leaf in flatten(got)}
    for path in sorted(want.keys() | have.keys()):
        if path not in have:
            return f"`{path}` is missing"
        if path not in want:
            return f"`{path}` was not expected"
        if want[path] != have[path]:
            return f"`{path}` is {_describe(have[path])}, expected {_describe(want[path])}"
    return None


def _describe(shape_and_dtype: tuple[tuple[int, ...], str]) -> str:
    shape, dtype = shape_and_dtype
    return f"{dtype}[{', '.join(map(str, shape))}]"
