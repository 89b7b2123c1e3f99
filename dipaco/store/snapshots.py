"""Path snapshots by Orbax: the inner state that a path carries from phase to phase.

Orbax is the library for sharded and many-host trees. It passes flipped bytes, casts silently, and
tells the damage that it does find in pages and from threads. So the digests of its files are kept
beside them and compared first; then the digest of the restored tree is compared with the one that
was recorded, and its structure with what was asked for.
"""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dipaco import trees
from dipaco.errors import ObjectDamaged, ObjectMissing
from dipaco.receipt import Receipt
from dipaco.store.objects import (
    Objects,
    file_digest,
    flush,
    make_folder,
    said_plainly,
    write_atomically,
)

DIGESTS = "digests.json"  # file -> digest, of all others in the folder


def save_snapshot(objects: Objects, name: str, state: Any) -> Receipt:
    """Writes a tree (any that JAX knows) as a folder; its receipt holds the digest of the tree."""
    import orbax.checkpoint as ocp

    _quiet()
    folder = objects.root / name
    leaves = _named_leaves(state)
    with said_plainly(folder):
        shutil.rmtree(folder, ignore_errors=True)  # what an interrupted attempt of this name left
        with ocp.StandardCheckpointer() as checkpointer:
            make_folder(folder.parent)
            checkpointer.save(folder.absolute(), leaves)
        for written in folder.rglob("*"):
            flush(written)
        write_atomically(folder / DIGESTS, json.dumps(_file_digests(folder)).encode())
    return Receipt(name, trees.digest(leaves), trees.num_bytes(leaves))


def load_snapshot(objects: Objects, receipt: Receipt, like: Any) -> Any:
    """The tree as it was saved; `like` describes it (`jax.eval_shape`).

    Raises:
      ObjectMissing, ObjectDamaged.
    """
    import orbax.checkpoint as ocp

    _quiet()
    name, digest, _ = receipt
    folder = objects.root / name
    if not folder.is_dir():
        raise ObjectMissing(file=folder)
    _check_files(folder)
    wanted, structure = jax.tree.flatten(like)
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    template = {
        f"{i:04d}": jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here)
        for i, leaf in enumerate(wanted)
    }
    try:
        with ocp.StandardCheckpointer() as checkpointer:
            leaves = checkpointer.restore(folder.absolute(), template)
    except Exception as error:  # Orbax and TensorStore raise many kinds for damaged files
        problem = str(error).partition("\n")[0][:200]
        raise ObjectDamaged(file=folder, problem=problem) from error
    leaves = {key: np.asarray(leaf) for key, leaf in leaves.items()}
    if trees.digest(leaves) != digest:
        raise ObjectDamaged(
            file=folder, problem=f"its digest is {trees.digest(leaves)}, not {digest}"
        )
    return jax.tree.unflatten(structure, [leaves[key] for key in sorted(leaves)])


def _file_digests(folder: Path) -> dict[str, str]:
    files = [file for file in folder.rglob("*") if file.is_file() and file.name != DIGESTS]
    return {file.relative_to(folder).as_posix(): file_digest(file) for file in sorted(files)}


def _check_files(folder: Path) -> None:
    try:
        recorded = json.loads((folder / DIGESTS).read_bytes())
    except (OSError, ValueError) as error:
        raise ObjectDamaged(file=folder, problem=f"`{DIGESTS}`: {error}") from error
    found = _file_digests(folder)
    for name, digest in recorded.items():
        if found.get(name) != digest:
            problem = f"`{name}` is missing"
            if name in found:
                problem = f"the digest of `{name}` is {found[name]} instead of {digest}"
            raise ObjectDamaged(file=folder, problem=problem)


def _named_leaves(state: Any) -> dict[str, np.ndarray]:
    """Leaves by number: the structure belongs to the optimiser, and comes back from a template."""
    return {f"{i:04d}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(state))}


def _quiet() -> None:
    logging.getLogger("absl").setLevel(logging.ERROR)
