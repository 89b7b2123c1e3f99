"""Runs are begun, opened again and refused, and nothing is lost."""

import dataclasses
import json

import pytest

from dipaco.control.errors import NotAvailable
from dipaco.data.config import DataConfig
from dipaco.errors import LedgerDamaged
from dipaco.model.config import part_names
from dipaco.runs.errors import NoSuchRun, RunOfOtherConfig
from dipaco.runs.opening import create_or_open, has_begun, reading
from dipaco.store.layout import Layout
from dipaco.topology import Level, Topology
from tests.support.tiny_run import TOY

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


def test_a_run_without_facts_is_begun_again_with_another_config(tmp_path):
    create_or_open(tmp_path, CONFIG, {"base": 1})[0].ledger.close()
    assert has_begun(tmp_path, CONFIG)
    assert not has_begun(tmp_path, OTHER)
    run, is_new = create_or_open(tmp_path, OTHER)
    assert (is_new, run.config, run.given("base")) == (True, OTHER, None)
    run.ledger.close()


def test_a_run_with_facts_refuses_another_config(half, copy_of):
    folder = copy_of(half).folder
    assert has_begun(folder, CONFIG)
    with pytest.raises(RunOfOtherConfig, match=r"`data\.length` was 64 and is 40") as raised:
        create_or_open(
            folder, dataclasses.replace(CONFIG, data=DataConfig(vocab_size=300, length=40))
        )
    assert "Nothing was changed" in str(raised.value)


def test_what_the_report_reckons_with_may_change_and_what_is_kept_may_not(dipaco, tiny, copy_of):
    """Nothing is trained again; the report is written again."""
    copy = copy_of(tiny)
    with reading(copy.folder) as run:
        before, facts = run.requested_config, run.ledger.facts.receipts_at("modular", 2)
    kept = dataclasses.replace(before.retention, snapshots=1)
    with pytest.raises(RunOfOtherConfig, match=r"`retention\.snapshots` was 3 and is 1"):
        create_or_open(copy.folder, dataclasses.replace(before, retention=kept))

    words = ("--set", "report.link_megabits=5,100")
    ended = dipaco("train", copy.config, "--run", copy.folder, *words)
    assert ended.code == 0, ended.err
    report = json.loads((copy.folder / "report.json").read_text())
    assert all(list(row["link_seconds"]) == ["5", "100"] for row in report["rows"])
    assert "time at 5" in ended.out
    with reading(copy.folder) as run:
        assert run.config.report.link_megabits == (5.0, 100.0)
        assert run.ledger.queue.is_finished()
        assert run.ledger.facts.receipts_at("modular", 2) == facts


def test_reading_raises_until_the_facts_are_there(tmp_path):
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
