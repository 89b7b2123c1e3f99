"""Path snapshots by Orbax: saved and loaded bit for bit; damage that Orbax misses is found."""

import json
import os
import shutil
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.memory_bucket import MemoryBucket

from dipaco.errors import DiskFull
from dipaco.inner.config import InnerSettings
from dipaco.inner.optimizer import make_optimizer
from dipaco.store.errors import ObjectDamaged, ObjectMissing, StateDiffers
from dipaco.store.objects import Objects
from dipaco.store.snapshots import SMALL_BYTES, load_snapshot, save_snapshot
from dipaco.store.verification import DIGESTS, UNSENT

OPTIMIZER = make_optimizer(InnerSettings())
NAME = "snapshots/modular/0003/000002-1"


def state_of(seed=0):
    """AdamW's own state, with numbers in it."""
    rng = np.random.default_rng(seed)
    parts = {"embed": {"w": np.ones((64, 8), np.float32)}, "norm": np.ones(8, np.float32)}
    return jax.tree.map(
        lambda leaf: (rng.normal(size=leaf.shape) * 100).astype(leaf.dtype), OPTIMIZER.init(parts)
    )


LIKE = jax.eval_shape(state_of)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """One snapshot for all tests that damage a copy of it."""
    root = tmp_path_factory.mktemp("saved")
    return root, save_snapshot(Objects(root), NAME, state_of())


@pytest.fixture
def copy(saved, tmp_path):
    root, receipt = saved
    shutil.copytree(root, tmp_path, dirs_exist_ok=True)
    return Objects(tmp_path), receipt


def assert_equal(one, other):
    """Bit for bit, in one structure."""
    assert jax.tree.structure(one) == jax.tree.structure(other)
    jax.tree.map(np.testing.assert_array_equal, one, other)
    leaves = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    assert all(leaf.dtype == same.dtype for leaf, same in leaves)


def test_small_leaves_are_side_by_side_and_come_back_in_their_shapes(objects):
    rng = np.random.default_rng(1)
    large = rng.normal(size=(SMALL_BYTES // 16, 4)).astype(np.float32)  # just not small
    state = [
        *(rng.normal(size=shape).astype(np.float32) for shape in ((3, 2), (), (0, 4), (5,))),
        large,
        *(rng.normal(size=shape).astype(jnp.bfloat16) for shape in ((2, 2), (7,))),
        np.int32(5),
        large[:-1],
    ]
    receipt = save_snapshot(objects, NAME, state)
    assert_equal(load_snapshot(objects, receipt, jax.eval_shape(lambda: state)), state)
    written = json.loads((objects.folder(NAME) / "_METADATA").read_text())
    names = [each["key_metadata"][0]["key"] for each in written["tree_metadata"].values()]
    assert sorted(names) == ["0004", "small_bfloat16", "small_float32", "small_int32"]


@pytest.mark.parametrize(("saved", "wanted"), [("adamw", "muon"), ("muon", "adamw")])
def test_the_state_of_another_optimiser_is_refused_and_not_called_damaged(objects, saved, wanted):
    def state(name):
        parts = {"block_00": {"query": np.ones((8, 8), np.float32)}}
        return make_optimizer(InnerSettings(optimizer=name)).init(parts)

    receipt = save_snapshot(objects, NAME, state(saved))
    with pytest.raises(StateDiffers, match=r"another optimiser.*`inner\.optimizer`"):
        load_snapshot(objects, receipt, jax.eval_shape(lambda: state(wanted)))
    load_snapshot(objects, receipt, jax.eval_shape(lambda: state(saved)))


def test_leaves_of_other_shapes_but_as_many_values_are_refused(objects):
    receipt = save_snapshot(objects, NAME, {"a": np.ones((2, 3), np.float32)})
    with pytest.raises(ObjectDamaged):
        load_snapshot(objects, receipt, {"a": np.ones((3, 2), np.float32)})


@pytest.mark.parametrize("name", ["exp[1]-lr", "a\\b", "x**y", "100%{a,b}?#\n$", "gs:", b"caf\xe9"])
def test_a_run_may_have_any_name(tmp_path, name):
    """Orbax and TensorStore take a folder's name for a pattern, or for something else."""
    objects = Objects(tmp_path / os.fsdecode(name) / "run")
    receipt = save_snapshot(objects, NAME, state_of())
    assert_equal(load_snapshot(objects, receipt, LIKE), state_of())
    damage = next(objects.folder(NAME).glob("_METADATA"))
    damage.write_bytes(b"")
    with pytest.raises(ObjectDamaged, match="000002-1 is not what was written"):
        load_snapshot(objects, receipt, LIKE)
    assert list(tmp_path.iterdir()) == [tmp_path / os.fsdecode(name)]


def test_so_may_the_folder_of_temporary_files(tmp_path, monkeypatch):
    (tmp_path / "t[1]").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "t[1]"))
    test_a_run_may_have_any_name(tmp_path / "t[1]", "exp[1]-lr")


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


def damaged(content):
    """A flipped bit, a file cut short, an empty file, no file."""
    middle = len(content) // 2
    yield content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    yield content[:middle]
    yield b""
    yield None


def test_damage_in_any_file_of_the_folder_is_found_and_the_file_named(copy):
    """Orbax itself passes most of it: flipped bytes in values, even files that are gone."""
    objects, receipt = copy
    folder = objects.root / receipt.name
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    assert len(files) > 5
    for file in files:
        whole = file.read_bytes()
        for content in damaged(whole):
            file.write_bytes(content) if content is not None else file.unlink()
            says = "000002-1 is not what was written"
            if content is None:
                says = f"{file} is missing"
            elif file.name == DIGESTS:  # A bit of it may have been one of a file's name.
                says += "|is missing"
            with pytest.raises((ObjectDamaged, ObjectMissing), match=says):
                load_snapshot(objects, receipt, LIKE)
        file.write_bytes(whole)
    assert_equal(load_snapshot(objects, receipt, LIKE), state_of())


def test_other_valid_values_in_place_of_the_saved_ones_are_found(copy):
    """What a checksum inside the files could not see: another snapshot under this name."""
    objects, receipt = copy
    save_snapshot(objects, NAME, state_of(seed=1))
    with pytest.raises(ObjectDamaged, match=f"its digest is .* not {receipt.digest}"):
        load_snapshot(objects, receipt, LIKE)


@pytest.mark.parametrize("is_sent", [True, False], ids=["sent", "not sent"])
def test_a_snapshot_that_a_run_at_this_url_left_before_is_fetched_again(tmp_path, is_sent):
    """The bucket was emptied, or `AWS_ENDPOINT_URL` names another: same names, other bytes."""

    def machine(name, content):
        return Objects(tmp_path / name, MemoryBucket(content))

    content: dict[str, bytes] = {}
    save_snapshot(machine("old", {}), NAME, state_of(seed=1), is_sent=is_sent)
    receipt = save_snapshot(machine("new", content), NAME, state_of())
    objects = machine("old", content)
    assert_equal(load_snapshot(objects, receipt, LIKE), state_of())
    before = objects.remote.down.total()
    assert_equal(load_snapshot(objects, receipt, LIKE), state_of())
    assert objects.remote.down.total() == before, "the right bytes are here now"
    assert not (objects.root / NAME / UNSENT).exists()


def test_a_damaged_snapshot_that_the_bucket_has_not_got_stays_damaged(tmp_path):
    objects = Objects(tmp_path, MemoryBucket({}))
    save_snapshot(objects, NAME, state_of(seed=1), is_sent=False)
    receipt = save_snapshot(Objects(tmp_path / "other"), NAME, state_of())
    with pytest.raises(ObjectDamaged, match=f"its digest is .* not {receipt.digest}"):
        load_snapshot(objects, receipt, LIKE)
    assert objects.folder(NAME).is_dir()


def test_a_long_error_of_orbax_becomes_one_line(copy, monkeypatch):
    def refuse(*_):
        raise ValueError("Shape mismatch.\nContext: {\n ...")

    monkeypatch.setattr("orbax.checkpoint.StandardCheckpointer.restore", refuse)
    with pytest.raises(
        ObjectDamaged, match=r"000002-1 is not what was written: Shape mismatch\.\. "
    ):
        load_snapshot(*copy, LIKE)


def test_a_full_disk_is_a_sentence_in_orbax_too(objects, monkeypatch):
    """The words are TensorStore's."""

    def full(*_):
        raise ValueError("RESOURCE_EXHAUSTED: Failed to write [os_error_code='28']")

    monkeypatch.setattr("orbax.checkpoint.StandardCheckpointer.save", full)
    with pytest.raises(DiskFull, match="000002-1"):
        save_snapshot(objects, NAME, state_of())


# The write that Orbax gave up may end after its event loop is closed.
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in. None:pytest.PytestUnraisableExceptionWarning"
)
def test_a_wall_clock_set_a_day_ahead_is_not_a_timeout(objects, monkeypatch):
    real, asked = time.time, []

    def jumping():
        """Right, until Orbax has asked once for how long it waits."""
        if sys._getframe(1).f_globals["__name__"].endswith("futures.future"):
            asked.append(1)
        return real() + 86400 * (len(asked) > 1)

    monkeypatch.setattr(time, "time", jumping)
    receipt = save_snapshot(objects, NAME, state_of())
    assert len(asked) > 1
    assert_equal(load_snapshot(objects, receipt, LIKE), state_of())
