"""Path snapshots by Orbax: the inner state that a path carries from phase to phase.

Orbax is the library for sharded and many-host trees. It does not notice flipped bytes, casts
silently, and reports the damage that it does find in long texts and from threads. So the digests of
its files are stored beside them and compared first (`Objects.folder`). Then the digest of the
restored tree is compared with the recorded one, and its structure with the one asked for. Orbax
cannot write to `s3://`: it writes to a local folder, which is stored like any object.

Small leaves are written side by side, as one array for each type. Sixty arrays of 16 kB take Orbax
35 ms of processor time to write and 28 ms to read, three of the same bytes 17 and 7 ms; and
TensorStore leaves about a kilobyte of memory behind for each array that is written.
"""

import contextlib
import errno
import logging
import math
import os
import re
import shutil
import tempfile
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dipaco import trees
from dipaco.errors import NotWritable
from dipaco.receipt import Receipt
from dipaco.store.errors import ObjectDamaged, StateDiffers
from dipaco.store.objects import Objects

SMALL_BYTES = 256 << 10  # leaves of fewer are put together
BESIDES_BYTES = 256 << 10  # Orbax writes so much beside the values.
LATE_SECONDS = 300.0  # less than Orbax waits: a timeout before it is a wall clock that was set


def save_snapshot(objects: Objects, name: str, state: Any, *, is_sent: bool = True) -> Receipt:
    """Writes a tree (any that JAX knows) as a folder. Its receipt holds the digest of the tree.
    Unless `is_sent`, a bucket does not get it.
    """
    _quiet()
    leaves = _named_leaves(state)

    def write(folder: Path) -> None:
        _check_room(folder.parent, trees.num_bytes(leaves))
        with _plainly_named(folder) as named, _checkpointer() as checkpointer:
            checkpointer.save(named, _joined(leaves))

    began = time.monotonic()
    try:
        objects.write_folder(name, write, is_sent=is_sent)
    except NotWritable as error:
        # Orbax measures its timeout by the wall clock: when that is set ahead, it gives up at once.
        is_late = time.monotonic() - began > LATE_SECONDS
        if is_late or not isinstance(error.__cause__, TimeoutError):
            raise
        objects.write_folder(name, write, is_sent=is_sent)
    return Receipt(name, trees.digest(leaves), trees.num_bytes(leaves))


def load_snapshot(objects: Objects, receipt: Receipt, like: Any) -> Any:
    """The tree as it was saved. `like` describes it (`jax.eval_shape`).

    Raises:
      ObjectMissing, ObjectDamaged.
      StateDiffers: it is whole, and of another optimiser or model.
    """
    _quiet()
    folder = objects.folder(receipt.name)
    try:
        return _restored(folder, receipt, like)
    except ObjectDamaged:
        if not objects.fetch_folder_again(receipt.name):
            raise
    return _restored(folder, receipt, like)


def _restored(folder: Path, receipt: Receipt, like: Any) -> Any:
    """The tree in a folder. Raises `ObjectDamaged` unless it is the one that was recorded."""
    name, digest, _ = receipt
    wanted, structure = jax.tree.flatten(like)
    like_leaves = {f"{i:04d}": leaf for i, leaf in enumerate(wanted)}
    template = {
        # Of no memory. Orbax gives arrays of NumPy for these, which takes half as much as JAX's.
        array: np.broadcast_to(np.zeros((), dtype), shape)
        for array, (shape, dtype) in _array_shapes(like_leaves).items()
    }
    try:
        with _plainly_named(folder) as named, _checkpointer() as checkpointer:
            _check_fits(checkpointer, named, template, folder)
            arrays = checkpointer.restore(named, template)
    except StateDiffers:
        raise
    except Exception as error:  # Orbax and TensorStore raise many kinds for damaged files
        problem = str(error).partition("\n")[0][:200]
        raise ObjectDamaged(file=folder, name=name, problem=problem) from error
    leaves = _apart(arrays, like_leaves)
    if trees.digest(leaves) != digest:
        problem = f"its digest is {trees.digest(leaves)}, not {digest}"
        raise ObjectDamaged(file=folder, name=name, problem=problem)
    return jax.tree.unflatten(structure, [leaves[key] for key in sorted(leaves)])


def _check_fits(checkpointer: Any, named: Path, template: Mapping[str, Any], folder: Path) -> None:
    """Raises `StateDiffers` unless the folder, `named` so for Orbax, has arrays as the template."""
    written = checkpointer.metadata(named).item_metadata.tree
    found, wanted = (
        {array: tuple(each.shape) for array, each in arrays.items()}
        for arrays in (written, template)
    )
    if found != wanted:
        values, expected = (sum(map(math.prod, shapes.values())) for shapes in (found, wanted))
        raise StateDiffers(file=folder, values=values, expected=expected)


def _checkpointer() -> Any:
    """Orbax's checkpointer for this process alone. By default it would wait for other hosts."""
    import orbax.checkpoint as ocp

    if jax.process_count() == 1:
        return ocp.StandardCheckpointer()
    here = jax.process_index()
    return ocp.StandardCheckpointer(
        multiprocessing_options=ocp.options.MultiprocessingOptions(
            primary_host=here, active_processes={here}, barrier_sync_key_prefix=f"host{here}"
        )
    )


@contextlib.contextmanager
def _plainly_named(folder: Path) -> Generator[Path]:
    """A name of the folder that Orbax and TensorStore take as it is. They read `[1]` and `**` as
    patterns, a backslash as a slash, and no bytes that are not UTF-8. So a folder below such a name
    is reached by a link.
    """
    folder = folder.absolute()
    if _is_plain(str(folder)):
        yield folder
        return
    places = filter(_is_plain, (tempfile.gettempdir(), "/tmp", "/var/tmp"))
    with tempfile.TemporaryDirectory(prefix="dipaco-", dir=next(places)) as place:
        link = Path(place) / "link"
        link.symlink_to(folder.parent, target_is_directory=True)
        yield link / folder.name


def _is_plain(name: str) -> bool:
    return re.fullmatch(r"[\w./ +,=@-]+", name, re.ASCII) is not None


def _check_room(folder: Path, num_bytes: int) -> None:
    """Fails before Orbax does: on a full disk, each of its dozen threads prints a traceback."""
    if shutil.disk_usage(folder).free < num_bytes + BESIDES_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _named_leaves(state: Any) -> dict[str, Any]:
    """Leaves by number. The structure is the optimiser's, and comes back from a template. Arrays of
    JAX stay as they are, since Orbax copies those of NumPy before it writes any.
    """
    is_own = jax.process_count() == 1
    return {
        f"{i:04d}": leaf if is_own and isinstance(leaf, jax.Array) else np.asarray(leaf)
        for i, leaf in enumerate(jax.tree.leaves(state))
    }


def _arrays_of(leaves: Mapping[str, Any]) -> dict[str, list[str]]:
    """Written array -> the leaves in it."""
    arrays: dict[str, list[str]] = {}
    for name, leaf in leaves.items():
        dtype = np.dtype(leaf.dtype)
        is_small = math.prod(leaf.shape) * dtype.itemsize < SMALL_BYTES
        arrays.setdefault(f"small_{dtype.name}" if is_small else name, []).append(name)
    return arrays


def _array_shapes(leaves: Mapping[str, Any]) -> dict[str, tuple[tuple[int, ...], Any]]:
    """Shape and type of each array."""
    return {
        array: (
            leaves[array].shape
            if array in leaves
            else (sum(math.prod(leaves[name].shape) for name in names),),
            leaves[names[0]].dtype,
        )
        for array, names in _arrays_of(leaves).items()
    }


def _joined(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays that are written."""
    return {
        array: leaves[array]
        if array in leaves
        else np.concatenate([np.asarray(leaves[name]).reshape(-1) for name in names])
        for array, names in _arrays_of(leaves).items()
    }


def _apart(arrays: Mapping[str, np.ndarray], like: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The leaves in these arrays. `like` has their shapes."""
    leaves: dict[str, np.ndarray] = {}
    for array, names in _arrays_of(like).items():
        if array in like:
            leaves[array] = arrays[array]
            continue
        start = 0
        for name in names:
            size = math.prod(like[name].shape)
            leaves[name] = arrays[array][start : start + size].reshape(like[name].shape)
            start += size
    return {name: leaves[name] for name in like}


def _quiet() -> None:
    logging.getLogger("absl").setLevel(logging.CRITICAL)  # It raises everything that it logs.
