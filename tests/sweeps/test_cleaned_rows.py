"""Rows that share a base model with one that was cleaned: they share its files by links."""

import dataclasses
import shutil

import pytest

from dipaco.config import MODULAR
from dipaco.data.prepare import prepare
from dipaco.errors import BadSetting
from dipaco.evaluation import plots
from dipaco.overrides import override
from dipaco.runs.opening import open_run, reading
from dipaco.runs.programs import Programs
from dipaco.store.address import Address
from dipaco.sweeps.errors import OtherBaseModel
from dipaco.sweeps.folder import is_finished, rows_of
from dipaco.sweeps.shared_base import begin_row, begin_shared, has_base_model
from dipaco.workers.cleaning import clean
from tests.workers.conftest import CONFIG, worker_of
from tests.workers.test_recovery import digests_of

ROWS = {rate: dataclasses.replace(CONFIG.outer, learning_rate=rate) for rate in (0.7, 0.5, 0.3)}


@pytest.fixture
def finish(monkeypatch):
    """`finish(folder, until)` does the tasks of the run in a folder; digests of its modules."""
    monkeypatch.setattr(plots, "draw_report", lambda report, file: file.write_bytes(b"a picture"))
    programs = Programs(CONFIG)

    def finish(folder, is_done=lambda _: False):
        run = open_run(folder)
        run.programs = programs
        worker = worker_of(run)
        while not is_done(folder) and worker.run_once():
            pass
        digests = digests_of(run)
        run.ledger.close()
        return digests

    return finish


@pytest.mark.slow
def test_rows_go_on_begin_and_are_in_the_table_after_another_was_cleaned(finish, tmp_path):
    configs = [dataclasses.replace(CONFIG, outer=outer) for outer in ROWS.values()]
    shared, alone = tmp_path / "shared", tmp_path / "alone"
    rows = [tmp_path / f"rows{number}" for number in range(3)]
    prepare(CONFIG.corpus, tmp_path / "prepared" / "corpus")
    begin_shared(shared, configs[0], lambda: tmp_path / "prepared")
    finish(shared, has_base_model)
    for row, config in zip(rows[:2], configs, strict=False):
        begin_row(row, config, shared)
    finish(rows[0])
    table = rows_of(rows[0])
    before = sorted(shared.rglob("*"))

    clean(Address(rows[0]))
    assert sorted(shared.rglob("*")) == before
    assert is_finished(rows[0])
    assert rows_of(rows[0]) == table

    begin_row(rows[2], configs[2], shared)  # one more row, afterwards
    shutil.copytree(tmp_path / "prepared", alone)
    for row, config in zip(rows[1:], configs[1:], strict=True):
        after = finish(row)
        run_alone = tmp_path / f"alone-{row.name}"
        begin_shared(run_alone, config, lambda: alone)
        assert finish(run_alone) == after
        assert is_finished(row)
    with reading(rows[0]) as run:
        for path in range(4):
            assert run.path_of(run.ledger.facts.release(MODULAR), path)


def test_a_row_refuses_a_shared_folder_with_another_base_model(tmp_path):
    """As a sweep that an older version began may have under the name of this one."""
    shared, row = tmp_path / "base-1", tmp_path / "row"
    prepare(CONFIG.corpus, tmp_path / "prepared" / "corpus")
    begin_shared(shared, CONFIG, lambda: tmp_path / "prepared")
    with pytest.raises(OtherBaseModel, match=r"base-1 holds another base model.*Move it away"):
        begin_row(row, dataclasses.replace(CONFIG, seed=CONFIG.seed + 1), shared)
    assert not row.exists()


def test_a_row_does_not_begin_with_a_setting_that_would_have_no_effect(tmp_path):
    shared, row = tmp_path / "base-1", tmp_path / "row"
    begin_shared(shared, CONFIG, lambda: None)
    with pytest.raises(BadSetting, match=r"data\.end_token"):
        begin_row(row, override(CONFIG, ["data.end_of_text=false", "data.end_token=<s>"]), shared)
    assert not row.exists()
