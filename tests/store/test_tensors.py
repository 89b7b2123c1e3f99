"""Trees as safetensors objects: equal trees are equal objects, and are loaded as they were."""

import errno

import jax
import ml_dtypes
import numpy as np
import optax
import pytest
import safetensors.numpy

from dipaco import trees
from dipaco.errors import DiskFull
from dipaco.store import tensors, verification
from dipaco.store.errors import ObjectDamaged, ObjectMissing
from dipaco.store.objects import Objects
from dipaco.store.tensors import load_state, load_tree, map_tree, save_state, save_tree

TREE = {
    "head": {"table": np.arange(6, dtype=np.float32).reshape(2, 3)},
    "block_00": {"norm": np.ones(3, ml_dtypes.bfloat16), "count": np.int32(7)},
    "documents": np.arange(5),
}


def test_a_tree_is_loaded_as_it_was_saved_with_scalars_and_types(objects):
    loaded = load_tree(objects, save_tree(objects, "modules", TREE))
    assert trees.difference(TREE, loaded) is None
    assert trees.digest(loaded) == trees.digest(TREE)


def test_equal_trees_give_equal_objects_for_any_order_and_strides(objects):
    turned = {name: TREE[name] for name in reversed(TREE)}
    turned["head"] = {"table": np.asfortranarray(TREE["head"]["table"])}
    one, other = (save_tree(objects, "modules", tree) for tree in (TREE, turned))
    assert one == other


def test_arrays_of_jax_are_saved_as_those_of_numpy(objects):
    tree = {"w": np.arange(4, dtype=np.float32)}
    on_device = jax.tree.map(jax.numpy.asarray, tree)
    assert save_tree(objects, "modules", on_device) == save_tree(objects, "modules", tree)


def test_an_empty_tree_is_an_object_too(objects):
    assert load_tree(objects, save_tree(objects, "modules", {})) == {}


def test_loaded_arrays_may_be_written_to_and_the_object_stays(objects):
    receipt = save_tree(objects, "modules", TREE)
    loaded = load_tree(objects, receipt)
    loaded["head"]["table"] += 1
    assert trees.digest(load_tree(objects, receipt)) == trees.digest(TREE)


@pytest.mark.parametrize("place", [0, 20, -1], ids=["length", "header", "values"])
def test_a_flipped_byte_is_found_before_the_file_is_opened(objects, tmp_path, place):
    receipt = save_tree(objects, "modules", TREE)
    file = tmp_path / receipt.name
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)
    with pytest.raises(ObjectDamaged, match=receipt.digest):
        load_tree(objects, receipt)


@pytest.mark.parametrize(
    "read",
    [load_tree, map_tree, Objects.read_bytes],
    ids=["load", "map", "bytes"],
)
def test_an_object_that_is_deleted_once_it_is_checked_is_still_read(objects, monkeypatch, read):
    """By others who go on from its successor, where a claim was lost."""
    receipt = save_tree(objects, "modules", TREE)

    def then_delete(file, receipt, found, check=verification._check_digest):
        check(file, receipt, found)
        file.unlink()

    monkeypatch.setattr(verification, "_check_digest", then_delete)
    assert read(objects, receipt)
    with pytest.raises(ObjectMissing):
        read(objects, receipt)


def test_so_is_a_state(objects, monkeypatch):
    state = {"head": {"velocity": np.ones((2, 3), np.float32)}}
    receipt = save_state(objects, state)
    monkeypatch.setattr(
        verification, "_check_digest", lambda file, *_: file.unlink(missing_ok=True)
    )
    assert trees.digest(load_state(objects, receipt, state)) == trees.digest(state)


HEADER = b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,%d]}}'


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"something else",
        b"\2\0\0\0\0\0\0\0[]",
        b'\x0b\0\0\0\0\0\0\0{"w": null}',
        bytes([len(HEADER % 8), *bytes(7)]) + HEADER % 8 + bytes(7),
        bytes([len(HEADER % 4), *bytes(7)]) + HEADER % 4 + bytes(8),
    ],
    ids=["empty", "text", "a list", "no place", "cut short", "another size"],
)
def test_an_object_that_is_not_a_safetensors_file_is_damaged(objects, content):
    receipt = objects.write_bytes("modules", "safetensors", content)
    for read in (load_tree, map_tree):
        with pytest.raises(
            ObjectDamaged, match=f"{receipt.digest}.*(not a safetensors file|empty)"
        ):
            read(objects, receipt)


@pytest.mark.parametrize("dtype", ["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u1", "?"])
def test_every_type_and_shape_is_read_as_the_library_reads_it(objects, tmp_path, dtype):
    values = np.arange(6).astype(dtype)
    tree = {"a": values.reshape(2, 3, 1), "b": values[1], "c": values[:0].reshape(0, 4)}
    receipt = save_tree(objects, "modules", tree)
    expected = safetensors.numpy.load_file(tmp_path / receipt.name)
    for read in (load_tree, map_tree):
        assert trees.digest(read(objects, receipt)) == trees.digest(expected) == trees.digest(tree)


def test_a_mapped_tree_equals_the_loaded_one_and_is_read_only(objects):
    receipt = save_tree(objects, "modules", TREE)
    mapped = map_tree(objects, receipt)
    assert trees.digest(mapped) == trees.digest(TREE)
    with pytest.raises(ValueError, match="read-only"):
        mapped["head"]["table"] += 1


def test_on_cpu_a_tree_is_given_to_jax_as_it_was_saved_without_a_copy(objects, monkeypatch):
    tree = {
        "embed": {"table": np.arange(96, dtype=np.float32).reshape(8, 12)},
        "head": {"scale": np.array(3, np.int32), "kernel": np.ones((5, 3), ml_dtypes.bfloat16)},
        "none": np.zeros((0, 4), np.float32),
    }
    read, aligned = {}, tensors._aligned

    def noted(shape, dtype):
        memory = aligned(shape, dtype)
        read[shape] = memory.ctypes.data
        return memory

    monkeypatch.setattr(tensors, "_aligned", noted)
    receipt = save_tree(objects, "module", tree)
    loaded = tensors.load_for_jax(objects, receipt)
    assert trees.difference(tree, jax.device_get(loaded)) is None
    for leaf in jax.tree.leaves(loaded):
        assert isinstance(leaf, jax.Array)
        assert leaf.unsafe_buffer_pointer() == read[leaf.shape] or not leaf.size
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    for leaf in jax.tree.leaves(tensors.load_for_jax(objects, receipt)):
        assert isinstance(leaf, np.ndarray)


def test_safetensors_own_error_about_a_full_disk_is_understood(objects, tmp_path, monkeypatch):
    from safetensors import SafetensorError

    def full(*_):
        raise SafetensorError(f"I/O error: No space left on device (os error {errno.ENOSPC})")

    monkeypatch.setattr("safetensors.numpy.save_file", full)
    with pytest.raises(DiskFull):
        save_tree(objects, "modules", TREE)
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == []


def state_of(optimizer):
    parts = {name: {"w": np.full((2, 2), 3.0, np.float32)} for name in ("embed", "head")}
    return {name: optimizer.init(part) for name, part in parts.items()}


@pytest.mark.parametrize(
    "optimizer",
    [optax.sgd(0.7, momentum=0.9, nesterov=True), optax.sgd(0.7), optax.adam(1e-3)],
    ids=["momentum", "nothing to keep", "with a step count"],
)
def test_an_optimiser_state_is_loaded_in_its_own_structure(objects, optimizer):
    state = jax.tree.map(lambda leaf: np.asarray(leaf + 1), state_of(optimizer))
    like = jax.eval_shape(lambda: state_of(optimizer))
    loaded = load_state(objects, save_state(objects, state), like)
    assert jax.tree.structure(loaded) == jax.tree.structure(state)
    jax.tree.map(np.testing.assert_array_equal, loaded, state)


def test_a_state_of_another_shape_or_optimiser_is_refused(objects):
    momentum = optax.sgd(0.7, momentum=0.9)
    receipt = save_state(objects, state_of(momentum))
    others = [{"w": np.zeros((3, 2))}, {"w": np.zeros((2, 2)), "x": np.zeros(1)}]
    for like in (
        *({name: momentum.init(part) for name in ("embed", "head")} for part in others),
        jax.eval_shape(lambda: state_of(optax.adam(1e-3))),
    ):
        with pytest.raises(ObjectDamaged, match="state of `embed`"):
            load_state(objects, receipt, like)
