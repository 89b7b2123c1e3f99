"""Runs are begun, opened again and refused, and nothing is lost."""

import contextlib
import dataclasses
import json
import sqlite3

import numpy as np
import pytest

from dipaco.config import ReportSettings
from dipaco.control.errors import NotAvailable
from dipaco.control.facts.recording import record
from dipaco.control.ledger import install_ledger
from dipaco.control.planning.tasks import Claim, SliceDone, Task
from dipaco.data.config import DataConfig
from dipaco.errors import NOT_NOW, BadSetting, LedgerDamaged
from dipaco.model.config import part_names
from dipaco.overrides import load_config
from dipaco.runs.errors import NoSuchRun, RunOfOtherConfig
from dipaco.runs.opening import create_or_open, has_begun, open_run, reading, with_report_settings
from dipaco.store.address import Address
from dipaco.store.layout import Layout
from dipaco.topology import Level, Topology
from dipaco.workers.process import begun_run
from dipaco.workers.tasks.report import write_report
from tests.support.tiny_run import TOY

ALL = Level(name="all", parts=part_names(TOY.model), experts=2)
CONFIG = dataclasses.replace(
    TOY, topology=Topology(levels=(ALL,)), data=DataConfig(length=64), phases=3
)
EDGE = r"`data\..*_token` is '<s>'. Expected .*end_of_text=false"
OTHER = dataclasses.replace(CONFIG, seed=1)


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
    with reading(str(tmp_path)) as there:  # a folder may be given as text
        assert there.config == CONFIG


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"data": dataclasses.replace(CONFIG.data, end_of_text=False, end_token="<s>")}, EDGE),
        ({"data": dataclasses.replace(CONFIG.data, end_of_text=False, start_token="<s>")}, EDGE),
    ],
)
def test_a_setting_without_effect_is_refused_when_a_run_begins_and_not_when_it_is_opened(
    changes, says, tmp_path, monkeypatch
):
    config = dataclasses.replace(CONFIG, **changes)
    with pytest.raises(BadSetting, match=says):
        create_or_open(tmp_path, config)
    assert not has_begun(tmp_path, config)
    with monkeypatch.context() as before:
        before.setattr("dipaco.runs.opening.check_settings", lambda *_: None)
        create_or_open(tmp_path, config)[0].ledger.close()
    with begun_run(Address.of(tmp_path), config) as (run, is_new):
        assert (run.config, is_new) == (config, False)


def test_no_end_is_named_where_texts_have_none(tmp_path):
    data = dataclasses.replace(CONFIG.data, end_of_text=False, start_token="")
    create_or_open(tmp_path, dataclasses.replace(CONFIG, data=data))[0].ledger.close()


def test_a_run_without_facts_is_begun_again_with_another_config(tmp_path):
    create_or_open(tmp_path, CONFIG, {"base": 1})[0].ledger.close()
    assert has_begun(tmp_path, CONFIG, is_alone=True)
    assert not has_begun(tmp_path, OTHER, is_alone=True)
    run, is_new = create_or_open(tmp_path, OTHER, is_alone=True)
    assert (is_new, run.config, run.given("base")) == (True, OTHER, None)
    run.ledger.close()


def test_a_run_that_another_process_works_on_is_not_begun_again(tmp_path):
    """Nothing is recorded yet: its worker reads the text."""
    with begun_run(Address.of(tmp_path), CONFIG) as (run, _):
        claim = run.ledger.queue.claim("w")
        refused = pytest.raises(RunOfOtherConfig, match="`seed` was 0 and is 1")
        with refused, begun_run(Address.of(tmp_path), OTHER):
            pass
        assert run.ledger.queue.renew(claim)
        with reading(tmp_path) as there:
            assert there.config == CONFIG
            assert [held.worker for held in there.ledger.queue.held()] == ["w"]
    with begun_run(Address.of(tmp_path), OTHER) as (run, is_new):
        assert is_new


@pytest.mark.parametrize("of", [np.float64, np.float32, np.array], ids=lambda of: of.__name__)
def test_numbers_of_numpy_are_taken_as_plain_ones(tmp_path, of):
    """As a loop over `np.logspace` gives them; the run is that of the plain numbers."""
    inner = dataclasses.replace(CONFIG.inner, learning_rate=of(0.25), steps=np.int64(4))
    with begun_run(Address.of(tmp_path), dataclasses.replace(CONFIG, inner=inner)) as (run, _):
        assert type(run.config.inner.learning_rate) is float
        assert type(run.config.inner.steps) is int
    plain = dataclasses.replace(CONFIG.inner, learning_rate=0.25, steps=4)
    with begun_run(Address.of(tmp_path), dataclasses.replace(CONFIG, inner=plain)) as (_, is_new):
        assert not is_new


def test_a_run_with_slices_of_its_text_refuses_another_config(tmp_path):
    sliced = dataclasses.replace(CONFIG, data=dataclasses.replace(CONFIG.data, slices=4))
    run, _ = create_or_open(tmp_path, sliced)
    of = {"stage": "prepare", "step": "read", "slice": 0}
    fact = SliceDone(**of, artifacts={}, summary={}, seconds=1.0)
    with run.ledger._database.transaction():
        record(run.ledger._database, fact)
    run.ledger.close()
    assert has_begun(tmp_path, OTHER, is_alone=True)
    with pytest.raises(RunOfOtherConfig):
        create_or_open(tmp_path, OTHER, is_alone=True)


def test_a_new_ledger_is_not_read_with_the_log_of_the_one_before(tmp_path):
    file = Layout(tmp_path).ledger
    run, _ = create_or_open(tmp_path, CONFIG)
    run.ledger.meta.set_command("pause")
    log = file.with_name(f"{file.name}-wal")
    left = log.read_bytes()  # as of a process that died
    run.ledger.close()
    log.write_bytes(left)
    with contextlib.closing(sqlite3.connect(tmp_path / "new")) as new:
        new.executescript("CREATE TABLE one(value); INSERT INTO one VALUES (1)")
    install_ledger(tmp_path / "new", file)
    with contextlib.closing(sqlite3.connect(file)) as new:
        assert new.execute("SELECT value FROM one").fetchall() == [(1,)]
        assert new.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_what_the_report_reckons_with_may_change_and_what_is_kept_may_not(here, tiny, copy_of):
    """Nothing is trained again; the report is written again."""
    copy = copy_of(tiny)
    with reading(copy.folder) as run:
        before, facts = run.requested_config, run.ledger.facts.receipts_at("modular", 2)
    kept = dataclasses.replace(before.retention, snapshots=1)
    with pytest.raises(RunOfOtherConfig, match=r"`retention\.snapshots` was 3 and is 1"):
        create_or_open(copy.folder, dataclasses.replace(before, retention=kept))

    words = ("--set", "report.link_megabits=5,100")
    ended = here("train", copy.config, "--run", copy.folder, *words)
    assert ended.code == 0, ended.err
    report = json.loads((copy.folder / "report.json").read_text())
    assert all(list(row["link_seconds"]) == ["5", "100"] for row in report["rows"])
    assert "time at 5" in ended.out
    with reading(copy.folder) as run:
        assert run.config.report.link_megabits == (5.0, 100.0)
        assert run.ledger.queue.is_finished()
        assert run.ledger.facts.receipts_at("modular", 2) == facts


def test_a_finished_run_of_another_program_reckons_with_other_links_too(here, tiny, copy_of):
    copy = copy_of(tiny)
    with reading(copy.folder) as run:
        other = run.ledger.meta.get("version").replace("+", "+0")
        run.ledger._database.change("change_meta", key="version", value=other)
    ended = here("train", copy.config, "--run", copy.folder, "--set", "report.link_megabits=5")
    assert ended.code == 0, ended.err
    assert "time at 5" in ended.out
    with reading(copy.folder) as run:
        assert run.ledger.queue.is_finished()


def test_a_command_that_is_refused_leaves_the_report_as_it_was(here, tiny, half, copy_of):
    copy, words = copy_of(tiny), ("--set", "report.link_megabits=5")
    ended = here("train", copy.config, "--run", copy.folder, *words, "--init-from", copy.folder)
    assert ended.code == 2
    with reading(copy.folder) as run:
        assert run.config.report == ReportSettings()
        assert run.ledger.queue.is_finished()
    unfinished = copy_of(half)
    with reading(unfinished.folder) as run:
        other = run.ledger.meta.get("version").replace("+", "+0")
        run.ledger._database.change("change_meta", key="version", value=other)
    ended = here("train", unfinished.config, "--run", unfinished.folder, *words)
    assert ended.code == NOT_NOW
    assert "Nothing was changed" in ended.err
    with reading(unfinished.folder) as run:
        assert run.config.report == ReportSettings()


def test_a_worker_that_opened_the_run_before_a_change_writes_the_report_by_it(tiny, copy_of):
    copy = copy_of(tiny)
    run, _ = create_or_open(copy.folder, load_config(copy.config))
    changed = dataclasses.replace(run.requested_config, report=ReportSettings(link_megabits=(5.0,)))
    with_report_settings(create_or_open(copy.folder, changed)[0], changed).ledger.close()
    write_report(run, Claim(Task("report"), 0, 0, "worker"))
    run.ledger.close()
    rows = json.loads((copy.folder / "report.json").read_text())["rows"]
    assert all(list(row["link_seconds"]) == ["5"] for row in rows)


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


URL = "postgresql://nobody/runs"


@pytest.mark.parametrize(
    "marker",
    [
        *("", "{}", "[]", "5", '{"database": 5}'),
        *(
            json.dumps({"database": URL, "schema": schema})
            for schema in (None, "", "\n", 'x"; DROP SCHEMA public; --')
        ),
    ],
)
def test_a_marker_that_was_never_written_is_damage_and_not_a_new_run(tmp_path, marker):
    Layout(tmp_path).database.write_text(marker)
    for opens in (open_run, lambda folder: create_or_open(folder, CONFIG, database=URL)):
        with pytest.raises(LedgerDamaged, match="does not say where the facts of its run are"):
            opens(tmp_path)
