"""A snapshot that this machine alone has: it is never removed to make room, and is sent once."""

import os

import pytest
from support.memory_bucket import MemoryBucket

from dipaco.store.cache import FileCache
from dipaco.store.objects import Objects
from dipaco.store.sending import send_folder
from dipaco.store.verification import DIGESTS

NAME = "snapshots/modular/0000/000001-1"
FILES = {"a": b"1" * 40, "d/b": b"2" * 40, "d/c": b"3" * 40}
OLD_SECONDS = 1000.0


class Counting(MemoryBucket):
    """Keeps the order of what was written, and breaks off before the file `breaks_at`."""

    breaks_at = ""

    def __init__(self, content):
        super().__init__(content)
        self.written = []

    def write(self, name, content):
        if name.endswith(f"/{self.breaks_at}") and self.breaks_at:
            raise InterruptedError
        self.written.append(name.removeprefix(f"{NAME}/"))
        super().write(name, content)


@pytest.fixture
def objects(tmp_path):
    root = tmp_path / "runs" / "one"
    cache = FileCache(tmp_path / "runs", 100, clock=lambda: 10_000.0)
    return Objects(root, Counting({}), cache)


def write(folder):
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def make_room(objects):
    """As after an hour in which other files came."""
    for file in objects.root.rglob("*"):
        os.utime(file, (OLD_SECONDS, OLD_SECONDS))
    objects.write("k", "bin", lambda file: file.write_bytes(bytes(200)))


def test_what_was_not_sent_is_not_removed_to_make_room(objects):
    objects.write_folder(NAME, write, is_sent=False)
    make_room(objects)
    assert {name: (objects.folder(NAME) / name).read_bytes() for name in FILES} == FILES
    send_folder(objects, NAME)
    make_room(objects)
    assert not (objects.place_of(NAME) / "a").exists(), "the bucket has it"
    assert (objects.folder(NAME) / "a").read_bytes() == FILES["a"], "and gives it back"


def test_a_folder_that_is_sent_at_once_may_go(objects):
    objects.write_folder(NAME, write)
    make_room(objects)
    assert not (objects.place_of(NAME) / "a").exists()


def test_an_interrupted_send_goes_on_with_what_is_not_there(objects):
    bucket = objects.remote
    objects.write_folder(NAME, write, is_sent=False)
    bucket.breaks_at = "d/c"
    with pytest.raises(InterruptedError):
        send_folder(objects, NAME)
    assert bucket.written == ["a", "d/b"]
    bucket.breaks_at = ""
    assert send_folder(objects, NAME)
    assert bucket.written == ["a", "d/b", "d/c", DIGESTS]
    assert not send_folder(objects, NAME)


def test_when_the_run_is_finished_or_a_month_has_passed_it_may_go(objects):
    objects.write_folder(NAME, write, is_sent=False)
    month_ago = 10_000.0 - 31 * 86400.0
    os.utime(objects.place_of(NAME) / "unsent", (month_ago, month_ago))
    assert list(objects._cache._files()), "it counts, and is among what may go"
    os.utime(objects.place_of(NAME) / "unsent", (OLD_SECONDS, OLD_SECONDS))
    assert not list(objects._cache._files())
    objects.need_no_unsent()
    make_room(objects)
    assert not (objects.place_of(NAME) / "a").exists()


def test_what_lies_there_by_the_same_name_and_is_not_the_same_is_sent_again(objects):
    objects.write_folder(NAME, write, is_sent=False)
    objects.remote.content[f"{NAME}/a"] = b"of another attempt"
    assert send_folder(objects, NAME)
    assert objects.remote.content[f"{NAME}/a"] == FILES["a"]
