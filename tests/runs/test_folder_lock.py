"""The lock of a run folder: exclusive, then shared, and released by the death of its process."""

from pathlib import Path

import pytest

from dipaco.errors import NotWritable, RunBusy
from dipaco.runs.folder_lock import folder_lock
from tests.support.tiny_run import Fault


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


def test_a_folder_that_cannot_hold_a_run(tmp_path):
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "run", Path("/proc/run")):
        with pytest.raises(NotWritable), folder_lock(folder):
            pass
