"""Run folders: begun, opened again, refused; and nothing is lost on the way."""

import dataclasses
from pathlib import Path

import pytest

from dipaco.control.errors import NotAvailable
from dipaco.data.config import DataConfig
from dipaco.errors import LedgerDamaged, NotWritable, RunBusy
from dipaco.model.config import part_names
from dipaco.runs.errors import NoSuchRun, RunOfOtherConfig
from dipaco.runs.folder_lock import folder_lock
from dipaco.runs.opening import create_or_open, has_begun, reading
from dipaco.store.layout import Layout
from dipaco.topology import Level, Topology
from tests.support.tiny_run import TOY, Fault

ALL = Level(name="all", parts=part_names(TOY.model), experts=2)
CONFIG = dataclasses.replace(
    TOY, topology=Topology(levels=(ALL,)), data=DataConfig(vocab_size=300, length=64), phases=3
)
OTHER = dataclasses.replace(CONFIG, seed=1)
SHORTER = dataclasses.replace(CONFIG, data=DataConfig(vocab_size=300, length=40))


def test_a_run_is_begun_once_and_opened_with_its_config_afterwards(tmp_path):
    run, is_new = create_or_open(tmp_path, CONFIG, {"base": ["name", "digest", 3]})
    assert is_new
    run.ledger.close()
    again, is_new = create_or_open(tmp_path, CONFIG)
    assert not is_new
    assert again.config == CONFIG
    assert again.given("base") == ["name", "digest", 3]
    assert again.given("modules") is None
    again.ledger.close()


def test_a_run_without_facts_is_begun_anew_with_another_config(tmp_path):
    create_or_open(tmp_path, CONFIG, {"base": 1})[0].ledger.close()
    assert has_begun(tmp_path, CONFIG)
    assert not has_begun(tmp_path, OTHER)
    run, is_new = create_or_open(tmp_path, OTHER)
    assert (is_new, run.config, run.given("base")) == (True, OTHER, None)
    run.ledger.close()


def test_a_run_with_facts_is_not(half, copy_of):
    folder = copy_of(half).folder
    assert has_begun(folder, CONFIG)
    with pytest.raises(RunOfOtherConfig, match=r"`data\.length` was 64 and is 40") as raised:
        create_or_open(
            folder, dataclasses.replace(CONFIG, data=DataConfig(vocab_size=300, length=40))
        )
    assert "Nothing was changed" in str(raised.value)


def test_what_is_read_must_be_there(tmp_path):
    with pytest.raises(NoSuchRun), reading(tmp_path / "nowhere"):
        pass
    assert not (tmp_path / "nowhere").exists()
    create_or_open(tmp_path, CONFIG)[0].ledger.close()
    with reading(tmp_path) as run:
        for read in (
            run.base_parts,
            lambda: run.routing_of("modular", 0),
            lambda: run.ledger.facts.release("modular"),
        ):
            with pytest.raises(NotAvailable, match="`dipaco train` continues it"):
                read()


def test_a_run_that_was_interrupted_before_it_began_is_begun(tmp_path, monkeypatch):
    def die(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("dipaco.control.ledger.Ledger.start", die)
        with pytest.raises(KeyboardInterrupt):
            create_or_open(tmp_path, CONFIG)
    assert not has_begun(tmp_path, CONFIG)
    with pytest.raises(NoSuchRun), reading(tmp_path):
        pass
    run, is_new = create_or_open(tmp_path, CONFIG)
    assert is_new
    run.ledger.close()


def test_a_ledger_that_was_emptied_is_damaged_and_not_a_new_run(tmp_path):
    create_or_open(tmp_path, CONFIG)[0].ledger.close()
    Layout(tmp_path).ledger.write_bytes(b"")
    with pytest.raises(LedgerDamaged, match="does not say which run"):
        create_or_open(tmp_path, CONFIG)


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


def test_seeds_depend_on_the_run_s_seed_and_on_what_they_are_for(tmp_path):
    seeds = set()
    for number, config in enumerate((CONFIG, OTHER)):
        run, _ = create_or_open(tmp_path / str(number), config)
        seeds |= {run.seed_for("rows", 0), run.seed_for("rows", 1), run.seed_for("router")}
        run.ledger.close()
    assert len(seeds) == 6
