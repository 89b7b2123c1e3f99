"""The cache of fetched files: bounded; the least recently used go, files in use stay."""

import os

import pytest
from support.memory_bucket import MemoryBucket

from dipaco.errors import BadSetting
from dipaco.store.cache import IN_USE_SECONDS, FileCache, cache_bytes
from dipaco.store.objects import Objects

NAME = "snapshots/modular/0000/000001-1"
OLD_SECONDS = 1000.0


@pytest.fixture
def runs(tmp_path):
    return tmp_path / "runs"


def add(runs, name, num_bytes, used_seconds):
    file = runs / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(bytes(num_bytes))
    os.utime(file, (used_seconds, used_seconds))
    return file


def test_the_least_recently_used_files_of_all_runs_are_removed(runs):
    oldest = add(runs, "one/objects/modules/a", 40, 1000)
    middle = add(runs, "two/snapshots/modular/0000/000001-1/d/b", 40, 2000)
    newest = add(runs, "one/corpus/tokens_00000.arrayrecord", 40, 3000)
    FileCache(runs, 100, clock=lambda: 10_000.0).added(40)
    assert not oldest.exists()
    assert middle.exists()
    assert newest.exists()


def test_a_file_that_is_used_again_stays(runs):
    one, other = (add(runs, f"one/objects/k/{name}", 60, at) for name, at in (("a", 1), ("b", 2)))
    cache = FileCache(runs, 100, clock=lambda: 10_000.0)
    cache.used(one)
    cache.added(60)
    assert one.exists()
    assert not other.exists()


def test_a_file_in_use_stays_even_over_the_bound(runs):
    files = [add(runs, f"one/objects/k/{number}", 60, 9_990) for number in range(3)]
    FileCache(runs, 100, clock=lambda: 10_000.0).added(60)
    assert all(file.exists() for file in files)
    FileCache(runs, 100, clock=lambda: 9_991.0 + IN_USE_SECONDS).added(60)
    assert sum(file.exists() for file in files) == 1


def test_files_that_cannot_be_fetched_again_are_never_removed(runs):
    kept = [
        add(runs, f"one/{name}", 500, 1)
        for name in ("events.jsonl", "logs/w.log", "partial/x", "preparing/tokens", "run.lock")
    ]
    FileCache(runs, 100, clock=lambda: 10_000.0).added(1)
    assert all(file.exists() for file in kept)


def test_the_folders_are_not_listed_for_every_new_file(runs, monkeypatch):
    looks = []
    cache = FileCache(runs, 1000, clock=lambda: 10_000.0)
    monkeypatch.setattr(cache, "_files", lambda: looks.append(1) or iter(()))
    for _ in range(100):
        cache.added(10)
    assert len(looks) == 1 + 99 * 10 // 50


@pytest.mark.parametrize(
    ("text", "num_bytes"), [("", 20_000_000_000), ("0.5", 500_000_000), ("0", 0)]
)
def test_the_bound_comes_from_the_environment(monkeypatch, text, num_bytes):
    monkeypatch.setenv("DIPACO_CACHE_GIGABYTES", text)
    assert cache_bytes() == num_bytes


@pytest.mark.parametrize("text", ["much", "-1", "nan", "inf"])
def test_a_bound_that_is_not_a_size_is_refused(monkeypatch, text):
    monkeypatch.setenv("DIPACO_CACHE_GIGABYTES", text)
    with pytest.raises(BadSetting, match="a number of gigabytes"):
        cache_bytes()


@pytest.fixture
def objects(runs):
    return Objects(runs / "one", MemoryBucket({}), FileCache(runs, 100, clock=lambda: 10_000.0))


def write_snapshot(objects, *, is_sent):
    def write(folder):
        folder.mkdir()
        (folder / "a").write_bytes(b"1" * 40)

    objects.write_folder(NAME, write, is_sent=is_sent)
    return objects.place_of(NAME)


def make_room(objects):
    """As after an hour in which other files came."""
    for file in objects.root.rglob("*"):
        os.utime(file, (OLD_SECONDS, OLD_SECONDS))
    objects.write("k", "bin", lambda file: file.write_bytes(bytes(200)))


def test_a_snapshot_that_the_bucket_has_may_go_and_one_that_it_has_not_stays(objects):
    folder = write_snapshot(objects, is_sent=False)
    make_room(objects)
    assert (objects.folder(NAME) / "a").read_bytes() == b"1" * 40
    objects.delete(NAME)
    assert write_snapshot(objects, is_sent=True) == folder
    make_room(objects)
    assert not (folder / "a").exists()
    assert (objects.folder(NAME) / "a").read_bytes() == b"1" * 40, "the bucket gives it back"


def test_an_unsent_snapshot_may_go_after_a_month_and_when_the_run_is_finished(objects):
    folder = write_snapshot(objects, is_sent=False)
    month_ago = 10_000.0 - 31 * 86400.0
    os.utime(folder / "unsent", (month_ago, month_ago))
    assert list(objects._cache._files()), "it counts, and is among what may go"
    os.utime(folder / "unsent", (OLD_SECONDS, OLD_SECONDS))
    assert not list(objects._cache._files())
    objects.need_no_unsent()
    make_room(objects)
    assert not (folder / "a").exists()
