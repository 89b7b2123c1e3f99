"""Objects are whole or not there, named by their bytes, and checked on every read."""

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.memory_bucket import MemoryBucket

from dipaco.errors import DiskFull, NotWritable
from dipaco.store import fetch_lock
from dipaco.store import objects as file
from dipaco.store.errors import LockHeld, ObjectDamaged, ObjectMissing
from dipaco.store.objects import Objects


def files(folder):
    return sorted(file for file in folder.rglob("*") if file.is_file())


def test_beside_other_machines_only_old_partial_files_are_deleted(objects, tmp_path, monkeypatch):
    """A folder counts by the newest file in it, and ages by the clock of the file server."""
    objects.delete_partial_writes(is_alone=False)  # there is nothing yet
    partial = tmp_path / "partial"
    for name in ("old", "new", "old folder/a", "new folder/a", "new folder/b"):
        (partial / name).parent.mkdir(parents=True, exist_ok=True)
        (partial / name).write_bytes(b"ha")
    for name in ("old", "old folder/a", "new folder/a", "old folder", "new folder"):
        os.utime(partial / name, (1, 1))
    monkeypatch.setattr("time.time", lambda: 1.0)  # this machine's clock was set back
    objects.delete_partial_writes(is_alone=False)
    assert files(tmp_path) == [partial / "new", partial / "new folder/a", partial / "new folder/b"]
    assert not (partial / "old folder").exists()


@pytest.mark.parametrize("is_folder", [False, True])
def test_what_takes_hours_to_send_is_left_to_its_writer(objects, tmp_path, is_folder):
    """A process that begins meanwhile takes it for no dead one's."""

    def write(place):
        file = place / "a" if is_folder else place
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"sent slowly")
        for each in (*tmp_path.rglob("*"),):
            os.utime(each, (1, 1))
        Objects(tmp_path).delete_partial_writes(is_alone=False)
        assert file.read_bytes() == b"sent slowly"

    if is_folder:
        objects.write_folder("snapshots/modular/0000/000001-1", write)
    else:
        objects.write("k", "bin", write)
    assert not any((tmp_path / "partial").iterdir())


def test_partial_files_of_a_killed_writer_are_deleted_and_nothing_else(objects, tmp_path):
    receipt = objects.write_bytes("k", "bin", b"kept")
    (tmp_path / "partial").mkdir(exist_ok=True)
    (tmp_path / "partial" / "half").write_bytes(b"ha")
    objects.delete_partial_writes(is_alone=True)
    assert files(tmp_path) == [tmp_path / receipt.name]
    objects.delete_partial_writes(is_alone=True)


def fail_with(number):
    def fail(*_, **__):
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("at", ["open", "fsync", "replace", "mkdir", "library"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_leaves_what_was_there_and_adds_nothing(
    objects, tmp_path, monkeypatch, number, at
):
    kept = objects.write_bytes("k", "bin", b"kept")

    def write(file):
        if at == "open":
            file.write_bytes(b"ha")
            fail_with(number)()
        if at == "library":  # safetensors and TensorStore raise errors of their own
            raise RuntimeError(f"Error while serializing: I/O error: (os error {number})")
        file.write_bytes(b"new")

    with monkeypatch.context() as patch:
        if at in ("fsync", "replace"):
            patch.setattr(os, at, fail_with(number))
        if at == "mkdir":
            patch.setattr("pathlib.Path.mkdir", fail_with(number))
        with pytest.raises(DiskFull, match=r"(?s)No space left.*goes on from here"):
            objects.write("k", "bin", write)
    assert files(tmp_path) == [tmp_path / kept.name]
    assert objects.read_bytes(kept) == b"kept"
    assert objects.read_bytes(objects.write("k", "bin", lambda f: f.write_bytes(b"new"))) == b"new"


def test_a_folder_that_may_not_be_written_is_a_sentence(objects, monkeypatch):
    monkeypatch.setattr(os, "replace", fail_with(errno.EROFS))
    with pytest.raises(NotWritable, match="Read-only file system"):
        objects.write_bytes("k", "bin", b"new")


def test_an_error_of_the_writer_is_not_taken_for_one_of_the_disk(objects):
    def write(_):
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        objects.write("k", "bin", write)


@pytest.mark.parametrize("place", [0, 5000, -1])
def test_a_flipped_byte_is_found_and_the_file_named(objects, tmp_path, place):
    receipt = objects.write_bytes("k", "bin", bytes(10_000))
    file = tmp_path / receipt.name
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)
    with pytest.raises(
        ObjectDamaged, match=rf"{receipt.digest}\.bin is not what was written.*dige"
    ):
        objects.read_bytes(receipt)


def test_a_folder_in_place_of_a_file_is_damage(objects, tmp_path):
    receipt = objects.write_bytes("k", "bin", bytes(10_000))
    (tmp_path / receipt.name).unlink()
    (tmp_path / receipt.name).mkdir()
    for read in (objects.read_bytes, objects.pages):
        with pytest.raises(ObjectDamaged, match="directory"):
            read(receipt)


def test_a_file_that_is_too_long_is_damaged(objects, tmp_path):
    receipt = objects.write_bytes("k", "bin", bytes(10_000))
    (tmp_path / receipt.name).write_bytes(bytes(10_001))
    with pytest.raises(ObjectDamaged, match="10001 bytes instead of 10000"):
        objects.file(receipt)


def test_what_was_computed_here_is_kept_only_if_it_is_the_object_of_the_bucket(tmp_path):
    content: dict[str, bytes] = {}
    maker, here = (Objects(tmp_path / name, MemoryBucket(content)) for name in ("maker", "here"))
    receipt = maker.write_bytes("modules", "bin", b"content")
    assert maker.has(receipt)
    assert not here.has(receipt)
    assert not here.keep(receipt, lambda file: file.write_bytes(b"CONTENT"))
    assert files(here.root) == []
    assert here.keep(receipt, lambda file: file.write_bytes(b"content"))
    assert here.has(receipt)
    assert here.read_bytes(receipt) == b"content"
    assert not here.remote.down, "nothing was fetched"
    assert here.remote.up == {}


def test_a_folder_that_is_not_sent_is_on_one_machine_only(tmp_path):
    content: dict[str, bytes] = {}
    here, other = (Objects(tmp_path / name, MemoryBucket(content)) for name in ("here", "other"))
    name = "snapshots/modular/0000/000001-1"
    here.write_folder(name, write_snapshot, is_sent=False)
    assert content == {}
    assert (here.folder(name) / "file").read_bytes() == b"state"
    with pytest.raises(ObjectMissing):
        other.folder(name)


@pytest.mark.parametrize("is_in_bucket", [False, True], ids=["folder", "bucket"])
def test_a_folder_that_is_removed_as_empty_before_its_next_object_comes_is_made_again(
    tmp_path, monkeypatch, is_in_bucket
):
    """The outer step of a phase deletes what it took, and a late contribution arrives."""
    objects, replace = Objects(tmp_path, MemoryBucket({}) if is_in_bucket else None), Path.replace
    kind, removed = "messages/modular/early/0000/000001", []

    def remove_first(old, new):
        if not removed and new.parent == tmp_path / "objects" / kind:
            removed.append(new)
            objects.delete_folder_if_empty(f"objects/{kind}/{new.name}")
        return replace(old, new)

    monkeypatch.setattr(Path, "replace", remove_first)
    receipt = objects.write_bytes(kind, "bin", b"content")
    assert removed
    assert objects.read_bytes(receipt) == b"content"


class LateBucket(MemoryBucket):
    """A bucket that does not show for some requests what it has."""

    def __init__(self, content, *, unread=0, unlisted=0):
        super().__init__(content)
        self.unread, self.unlisted = unread, unlisted

    def read(self, name):
        self.unread -= 1
        return None if self.unread >= 0 else super().read(name)

    def names(self, folder):
        self.unlisted -= 1
        return [] if self.unlisted >= 0 else super().names(folder)


@pytest.fixture
def slept(monkeypatch):
    """The seconds that were slept, on a clock that only sleeping moves."""
    now = [0.0]
    monkeypatch.setattr(file.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(file.time, "sleep", lambda wait: now.__setitem__(0, now[0] + wait))
    return now


@pytest.mark.parametrize(
    ("late", "was_sent", "is_there", "most_seconds"),
    [
        ({"unread": 3, "unlisted": 3}, True, True, 1),
        ({"unread": 9}, True, True, 60),  # the list has it, so it is waited for
        ({"unread": 99, "unlisted": 99}, True, False, 15),
        ({"unread": 99}, True, False, 120),
        ({"unread": 99, "unlisted": 99}, False, False, 1),
        ({"unread": 3}, False, True, 1),
    ],
    ids=["late", "cached", "lost", "listed for ever", "never sent", "sent all the same"],
)
def test_an_object_that_was_missed_is_asked_for_again_in_two_ways(
    tmp_path, slept, late, was_sent, is_there, most_seconds
):
    content: dict[str, bytes] = {}
    receipt = Objects(tmp_path / "one", MemoryBucket(content)).write_bytes("k", "bin", b"content")
    other = Objects(tmp_path / "other", LateBucket(content, **late))
    with pytest.raises(ObjectMissing) as missed:
        other.file(receipt)
    assert other.turns_up(missed.value, was_sent=was_sent) == is_there
    assert slept[0] <= most_seconds
    if is_there:
        assert other.read_bytes(receipt) == b"content"


def test_a_folder_of_which_a_file_shows_late_is_missing_and_no_damage(tmp_path, slept, monkeypatch):
    objects, name = Objects(tmp_path), "snapshots/modular/0000/000001-1"
    objects.write_folder(name, write_snapshot)
    part = objects.place_of(name) / "file"
    part.rename(tmp_path / "late")
    with pytest.raises(ObjectMissing) as missed:
        objects.folder(name)
    assert missed.value.values["name"] == name
    assert not objects.turns_up(missed.value, was_sent=True)
    monkeypatch.setattr(file.time, "sleep", lambda _: (tmp_path / "late").rename(part))
    assert objects.turns_up(missed.value, was_sent=True)


def write_snapshot(folder):
    folder.mkdir()
    (folder / "file").write_bytes(b"state")


def test_a_lock_is_waited_for_as_long_as_its_holder_lives(tmp_path, monkeypatch, caplog):
    """It was given up after a minute, and a large object fetched by all workers of a machine."""
    monkeypatch.setattr(fetch_lock, "SAID_SECONDS", 0.05)
    file = tmp_path / "turns" / "a"
    holding = (
        "import fcntl, sys; stream = open(sys.argv[1], 'a'); fcntl.flock(stream, fcntl.LOCK_EX);"
        "print('held', flush=True); sys.stdin.read()"
    )
    file.parent.mkdir()
    command = [sys.executable, "-c", holding, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        threading.Timer(0.5, holder.kill).start()
        with fetch_lock.held_lock(file):
            assert holder.wait() == -9
            assert "Waiting for another process of this machine" in caplog.text
            monkeypatch.setattr("dipaco.stopping.is_over", lambda: True)
            with pytest.raises(LockHeld, match="Told to end"), fetch_lock.held_lock(file):
                pass
