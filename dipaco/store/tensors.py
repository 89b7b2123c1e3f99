"""Trees of arrays as safetensors objects: parameters of modules, outer states, contributions,
scores.

safetensors is the format every tool opens. It has no checksum: the object's digest is checked
before it is opened. Leaves are memory-mapped, so reading a module takes one module of memory.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dipaco import trees
from dipaco.errors import ObjectDamaged
from dipaco.receipt import Receipt
from dipaco.store.objects import Objects


def save_tree(objects: Objects, kind: str, tree: Mapping[str, Any]) -> Receipt:
    """Writes a nested mapping of arrays; equal trees give equal objects."""
    from safetensors.numpy import save_file

    leaves = {name: np.asarray(leaf, order="C") for name, leaf in trees.flatten(tree)}
    return objects.write(kind, "safetensors", lambda file: save_file(leaves, file))


def load_tree(objects: Objects, receipt: Receipt) -> dict[str, Any]:
    """The tree as it was saved, as NumPy arrays.

    Raises:
      ObjectMissing, ObjectDamaged.
    """
    return trees.unflatten(_load(objects.file(receipt)))


def save_state(objects: Objects, state: Mapping[str, Any]) -> Receipt:
    """Writes an optimiser's state: per part, any tree that JAX knows."""
    leaves = {
        f"{part}.{i}": np.asarray(leaf)
        for part, tree in state.items()
        for i, leaf in enumerate(jax.tree.leaves(tree))
    }
    return save_tree(objects, "states", leaves)


def load_state(objects: Objects, receipt: Receipt, like: Mapping[str, Any]) -> dict[str, Any]:
    """The state as it was saved; `like` gives the structure, as `jax.eval_shape` describes it.

    Raises:
      ObjectMissing, ObjectDamaged: the bytes, or the structure, are not those that were saved.
    """
    file = objects.file(receipt)
    leaves = _load(file)
    state = {}
    for part, tree in like.items():
        wanted, structure = jax.tree.flatten(tree)
        values = [leaves.pop(f"{part}.{i}", None) for i in range(len(wanted))]
        for value, description in zip(values, wanted, strict=True):
            if value is None or value.shape != description.shape:
                raise ObjectDamaged(file=file, problem=f"the state of `{part}` has another shape")
        state[part] = jax.tree.unflatten(structure, values)
    return state


def _load(file: Path) -> dict[str, np.ndarray]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="numpy") as tensors:
            return {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ObjectDamaged(file=file, problem=str(error)) from error
