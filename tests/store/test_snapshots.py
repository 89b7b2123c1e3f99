"""Path snapshots by Orbax: there and back bit for bit; damage, which Orbax passes, is found."""

import gc
import shutil

import jax
import numpy as np
import pytest

from dipaco.errors import DiskFull, ObjectDamaged, ObjectMissing
from dipaco.inner.config import InnerSettings
from dipaco.inner.optimizer import adamw
from dipaco.store.objects import Objects
from dipaco.store.snapshots import load_snapshot, save_snapshot

OPTIMIZER = adamw(InnerSettings())
NAME = "snapshots/modular/0003/000002-1"


def state_of(seed=0):
    """AdamW's own state, with numbers in it."""
    rng = np.random.default_rng(seed)
    parts = {"embed": {"w": np.ones((64, 8), np.float32)}, "norm": np.ones(8, np.float32)}
    return jax.tree.map(
        lambda leaf: (rng.normal(size=leaf.shape) * 100).astype(leaf.dtype), OPTIMIZER.init(parts)
    )


LIKE = jax.eval_shape(state_of)


# A read that fails leaves Orbax's coroutines unfinished; the collector complains of them.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture
def objects(tmp_path):
    return Objects(tmp_path)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """One snapshot for all tests that damage a copy of it."""
    root = tmp_path_factory.mktemp("saved")
    return root, save_snapshot(Objects(root), NAME, state_of())


@pytest.fixture
def copy(saved, tmp_path):
    root, receipt = saved
    shutil.copytree(root, tmp_path, dirs_exist_ok=True)
    yield Objects(tmp_path), receipt
    gc.collect()  # here, where the complaint is expected


def assert_equal(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    jax.tree.map(np.testing.assert_array_equal, one, other)


def test_a_state_comes_back_bit_for_bit_in_its_structure(copy):
    objects, receipt = copy
    loaded = load_snapshot(objects, receipt, LIKE)
    assert_equal(loaded, state_of())
    assert [leaf.dtype for leaf in jax.tree.leaves(loaded)] == [
        leaf.dtype for leaf in jax.tree.leaves(state_of())
    ]


def test_a_state_spread_over_devices_is_saved_as_the_same_state(objects, saved):
    if jax.device_count() < 2:
        pytest.skip("needs the eight fake devices of conftest.py")
    mesh = jax.make_mesh((2,), ("rows",), devices=jax.devices()[:2])
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("rows"))
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    spread = jax.tree.map(
        lambda leaf: jax.device_put(leaf, rows if leaf.ndim else everywhere), state_of()
    )
    receipt = save_snapshot(objects, NAME, spread)
    assert receipt == saved[1]
    assert_equal(load_snapshot(objects, receipt, LIKE), state_of())


def test_a_flipped_byte_in_any_file_of_the_folder_is_found_or_does_not_matter(copy):
    """Orbax itself passes flipped bytes in the values; its notes (times, versions) may change."""
    objects, receipt = copy
    folder = objects.root / receipt.name
    found = []
    for file in sorted(file for file in folder.rglob("*") if file.is_file()):
        content = file.read_bytes()
        if not content:
            continue
        flipped = bytearray(content)
        flipped[len(content) // 2] ^= 1
        file.write_bytes(flipped)
        try:
            assert_equal(load_snapshot(objects, receipt, LIKE), state_of())
        except ObjectDamaged:
            found.append(file)
        file.write_bytes(content)
    largest = max(folder.rglob("*"), key=lambda file: file.stat().st_size if file.is_file() else 0)
    assert largest in found
    assert_equal(load_snapshot(objects, receipt, LIKE), state_of())


def test_values_that_were_exchanged_for_other_valid_ones_are_found(copy):
    """What a checksum inside the files could not see: another snapshot under this name."""
    objects, receipt = copy
    save_snapshot(objects, NAME, state_of(seed=1))
    with pytest.raises(ObjectDamaged, match=f"its digest is .* not {receipt.digest}"):
        load_snapshot(objects, receipt, LIKE)


def test_a_file_that_is_gone_is_damage_and_a_folder_that_is_gone_is_missing(copy):
    objects, receipt = copy
    folder = objects.root / receipt.name
    max(
        (f for f in folder.rglob("*") if f.is_file()), key=lambda file: file.stat().st_size
    ).unlink()
    with pytest.raises(ObjectDamaged, match="000002-1 is not what was written"):
        load_snapshot(objects, receipt, LIKE)
    shutil.rmtree(folder)
    with pytest.raises(ObjectMissing, match="000002-1 is missing"):
        load_snapshot(objects, receipt, LIKE)


def test_what_an_interrupted_attempt_left_under_the_name_is_written_over(objects):
    folder = objects.root / NAME
    folder.mkdir(parents=True)
    (folder / "half").write_bytes(b"half")
    receipt = save_snapshot(objects, NAME, state_of())
    assert_equal(load_snapshot(objects, receipt, LIKE), state_of())


def test_a_full_disk_is_a_sentence_in_orbax_too(objects, monkeypatch):
    """The words are TensorStore's."""

    def full(*_):
        raise ValueError("RESOURCE_EXHAUSTED: Failed to write [os_error_code='28']")

    monkeypatch.setattr("orbax.checkpoint.StandardCheckpointer.save", full)
    with pytest.raises(DiskFull, match="000002-1"):
        save_snapshot(objects, NAME, state_of())
