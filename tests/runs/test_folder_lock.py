"""The lock of a run folder: exclusive, then shared, and released by the death of its process."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dipaco.errors import NotWritable, RunBusy
from dipaco.runs.errors import FolderHoldsOther, LinkLeadsNowhere, RunIsFile
from dipaco.runs.folder_lock import folder_lock
from dipaco.runs.opening import create_or_open, open_run, reading
from tests.support.tiny_run import TOY, Fault


def test_the_first_process_holds_the_lock_alone_and_later_ones_share_it(tmp_path):
    with folder_lock(tmp_path) as first:
        assert first.is_exclusive
        first.share()
        with folder_lock(tmp_path) as second, folder_lock(tmp_path) as third:
            assert not second.is_exclusive
            assert not third.is_exclusive
    with folder_lock(tmp_path) as again:
        assert again.is_exclusive


def test_a_process_waits_while_another_puts_the_run_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr("dipaco.runs.folder_lock.SETUP_SECONDS", 0.0)
    with folder_lock(tmp_path), pytest.raises(RunBusy), folder_lock(tmp_path):
        pass


def test_a_lock_is_released_when_its_process_dies(dipaco, config_file, tmp_path):
    killed = dipaco("train", config_file, "--run", tmp_path, fault=Fault("after claim", "prepare"))
    assert killed.fired == "after claim prepare", killed.err
    with folder_lock(tmp_path) as lock:
        assert lock.is_exclusive


def test_a_folder_that_was_made_for_nothing_is_removed_again(tmp_path):
    (tmp_path / "there").mkdir()
    fail_in(tmp_path / "there", lambda lock: None)
    fail_in(tmp_path / "new", lambda lock: None)
    fail_in(tmp_path / "begun", lambda lock: (tmp_path / "begun" / "ledger.sqlite").touch())
    fail_in(tmp_path / "shared", lambda lock: lock.share())  # others may hold it now
    assert sorted(each.name for each in tmp_path.iterdir()) == ["begun", "shared", "there"]


def test_who_waited_for_a_folder_that_is_removed_makes_it_again(tmp_path, monkeypatch):
    """A lock on a file that is no longer there would keep nobody out."""
    folder, waits, sleep = tmp_path / "new", threading.Event(), time.sleep
    monkeypatch.setattr(time, "sleep", lambda seconds: (waits.set(), sleep(seconds)))

    def wait_for_it():
        with folder_lock(folder) as lock:
            return lock.is_exclusive and (folder / "run.lock").exists()

    def wait_for_who_waits(_):
        waiting.append(pool.submit(wait_for_it))
        assert waits.wait(timeout=60)

    waiting = []
    with ThreadPoolExecutor(1) as pool:
        fail_in(folder, wait_for_who_waits)
        assert waiting[0].result(timeout=60)


def test_a_file_system_that_numbers_a_file_differently_each_time_keeps_nobody_waiting_for_ever(
    tmp_path, monkeypatch
):
    """Whether the open file is still there cannot be told then."""
    looks, pauses = [], []
    monkeypatch.setattr("os.path.samestat", lambda *_: looks.append(1) or len(looks) > 1000)
    monkeypatch.setattr(time, "sleep", pauses.append)
    with folder_lock(tmp_path) as lock:
        assert lock.is_exclusive
    assert 2 < len(looks) < 100
    assert len(pauses) == len(looks) - 1


@pytest.mark.parametrize("step", ["open", "mkdir"])
def test_who_makes_a_folder_that_is_removed_just_then_makes_it_again(tmp_path, monkeypatch, step):
    begins = getattr(Path, step)

    def removed_first(self, *arguments, **more):
        monkeypatch.undo()
        if step == "mkdir":  # it was there, and is no folder any more
            raise FileExistsError(self)
        self.parent.rmdir()
        return begins(self, *arguments, **more)

    monkeypatch.setattr(Path, step, removed_first)
    with folder_lock(tmp_path / "run") as lock:
        assert lock.is_exclusive
    assert (tmp_path / "run").is_dir()


def test_a_folder_that_cannot_hold_a_run(tmp_path):
    (tmp_path / "file").touch()
    for look in (enter, open_run):
        for file in (tmp_path / "file", Path("/dev/null")):
            with pytest.raises(RunIsFile, match="is a file, and a run is a folder"):
                look(file)
    for folder in (tmp_path / "file" / "run", Path("/proc/run")):
        with pytest.raises(NotWritable):
            enter(folder)


@pytest.mark.parametrize("below", [".", "runs/one"])
def test_a_link_that_leads_nowhere_is_a_sentence_for_who_begins_and_who_looks(tmp_path, below):
    """As one to a disk that is not mounted: `File exists`, or `Begin one` where one is."""
    (tmp_path / "disk").symlink_to("/not/mounted")
    for look in (enter, open_run, lambda folder: reading(folder).__enter__()):
        with pytest.raises(LinkLeadsNowhere, match=r"disk, and /not/mounted is not there\. Is its"):
            look(tmp_path / "disk" / below)


def test_a_folder_with_folders_of_no_run_is_left_alone(tmp_path):
    """As the one above several runs, or one of sources."""
    for name in ("quickstart", "toy", "ours", "corpus"):
        (tmp_path / name).mkdir()
    with pytest.raises(FolderHoldsOther, match=r"other folders: ours, quickstart, toy\."):
        enter(tmp_path)
    assert len(list(tmp_path.iterdir())) == 4


def test_files_a_file_system_s_own_folder_and_what_a_run_left_there_are_in_nobody_s_way(tmp_path):
    for name in ("corpus", "logs", "lost+found", ".snapshots"):
        (tmp_path / name).mkdir()
    (tmp_path / "notes.txt").touch()
    enter(tmp_path)


def test_a_run_that_has_begun_is_opened_whatever_lies_beside_it(tmp_path):
    create_or_open(tmp_path, TOY)[0].ledger.close()
    (tmp_path / "pictures").mkdir()
    enter(tmp_path)


def enter(folder):
    with folder_lock(folder):
        pass


def fail_in(folder, before):
    def fails():
        with folder_lock(folder) as lock:
            before(lock)
            raise KeyError

    with pytest.raises(KeyError):
        fails()
