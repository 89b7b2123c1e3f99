"""A sweep's command as a whole, without training: its runs are begun, and some said to be done."""

import dataclasses
import json
from pathlib import Path

import pytest

import dipaco
from dipaco.config import DENSE, MODULAR
from dipaco.evaluation.tables import ReportRow
from dipaco.library.errors import SweepUnfinished
from dipaco.overrides import override
from dipaco.runs.opening import create_or_open, reading
from dipaco.store.layout import SweepLayout
from dipaco.sweeps import sweep
from dipaco.sweeps.errors import RowRefused
from dipaco.sweeps.measured import Origin
from dipaco.sweeps.sweep import run_sweep
from tests.support.report_costs import COSTS
from tests.support.tiny_run import TOY, in_ledger

FLAT = dataclasses.replace(TOY, baselines=(DENSE,))
ROWS = {
    "flat": FLAT,
    "other": override(FLAT, ["outer.momentum=0.5"]),
    "third": override(FLAT, ["outer.momentum=0.25"]),
}


def result(name: str, seed: int) -> ReportRow:
    return ReportRow(
        name=name,
        variant="",
        seed=seed,
        perplexity=50.0 + len(name),
        steps=1,
        **COSTS,
    )


def finish(folder: Path) -> None:
    """Says that the tasks of a run are done."""
    in_ledger(folder, "UPDATE tasks SET state = 'done'")


def fail(folder: Path) -> None:
    """Has the first task of a run fail."""
    with reading(folder) as run:
        claim = run.ledger.queue.claim("worker")
        assert claim is not None
        assert run.ledger.failures.fail(claim, "Diverged: nan", is_lasting=True)


class Little:
    """A sweep, of which each command begins the runs that it has left to do and ends there."""

    def __init__(self, root: Path):
        self.layout = SweepLayout(root)

    def command(self, *redo: str, rows=ROWS, only=(), seeds=(0,), reference=""):
        return run_sweep(
            "little", rows, self.layout, list(seeds), redo=redo, only=only, reference=reference
        )

    def run(self, row: str, seed: int = 0) -> Path:
        return self.layout.row(row, seed)

    @property
    def trained(self) -> dict[str, tuple[str, ...]]:
        """Row and seed of a run that is begun -> the baselines that it trains."""
        found = {}
        for folder in self.layout.runs():
            with reading(folder) as run:
                name = str(folder.relative_to(self.layout.root)).removeprefix("rows/")
                found[name] = run.requested_config.baselines
        return found


@pytest.fixture
def little(tmp_path, monkeypatch):
    def begin_all(runs, layout, first_row, tell):
        assert first_row == "flat"
        for run in runs:
            create_or_open(run.folder, run.config)[0].ledger.close()
        return []

    def rows_of(folder, settings):
        with reading(folder) as run:
            config = run.requested_config
        return [result(name, config.seed) for name in (*config.baselines, MODULAR)]

    monkeypatch.setattr(sweep, "jobs_left", begin_all)
    monkeypatch.setattr(sweep, "rows_of", rows_of)
    monkeypatch.setattr(sweep, "origin_of", lambda folder: Origin(folder.parent.name))
    monkeypatch.setattr(sweep, "draw_sweep", lambda table, file: None)
    return Little(tmp_path / "sweep")


def test_a_redo_that_was_killed_goes_on_where_it_was(little, capsys):
    little.command()
    begun = {"flat/0": (DENSE,), "other/0": (DENSE,), "third/0": (DENSE,)}
    assert little.trained == begun
    little.command("flat", "other", "third")
    assert capsys.readouterr().out.count("has not changed: there is nothing to redo.") == 3
    assert little.trained == begun


def test_a_sweep_is_read_from_python_and_compared_with_the_row_that_is_named(little):
    little.command()
    with pytest.raises(SweepUnfinished, match="no run of it is finished"):
        dipaco.open(little.layout.root)
    for row in ROWS:
        finish(little.run(row))
    little.command()
    assert dipaco.open(little.layout.root).content["reference"] == "flat/dense"
    little.command(reference="other")
    table = dipaco.open(str(little.layout.root))
    assert table.content["reference"] == table.names[0] == "other"
    assert set(table.names) >= set(ROWS)
    head, *lines = little.layout.table("csv").read_text().splitlines()
    assert head.startswith("name,variant,seed,perplexity,bits_per_byte,")
    assert [line.partition(",")[0] for line in lines] == table.names
    assert "other" in repr(table).splitlines()[3]
    assert table._repr_markdown_().startswith("# little")
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    assert isinstance(table.data_frame(), pandas.DataFrame)


def test_a_picture_that_fails_takes_no_table_away(little, monkeypatch):
    monkeypatch.setattr(sweep, "draw_sweep", lambda table, file: 1 / 0)
    little.command()
    finish(little.run("flat"))
    little.command(only=["flat"])
    table = little.layout.table("md").read_text()
    assert "The picture could not be drawn: ZeroDivisionError: division by zero" in table


def test_rows_that_read_other_text_are_told_apart_in_the_table_of_a_command(little):
    little.command()
    for row in ROWS:
        finish(little.run(row))
    table = little.command().table
    assert table.apart == ["other/dense", "other", "third/dense", "third"]
    assert json.loads(little.layout.table("json").read_bytes())["apart"] == table.apart


WITHOUT_EFFECT = ["data.end_of_text=false", "data.end_token=<s>"]


@pytest.mark.parametrize("order", [("flat", "bad"), ("bad", "flat")])
def test_a_row_with_a_setting_without_effect_is_refused_before_any_run_begins(little, order):
    rows = {"flat": FLAT, "bad": override(FLAT, WITHOUT_EFFECT)}
    with pytest.raises(RowRefused, match=r"The row `bad` cannot begin: `data\.end_token` is '<s>'"):
        little.command(rows={name: rows[name] for name in order})
    assert little.trained == {}
    little.command(rows=rows, only=["flat"])
    assert little.trained == {"flat/0": (DENSE,)}


def test_a_row_that_is_changed_to_a_setting_without_effect_keeps_its_run(little):
    little.command()
    before = little.trained
    with pytest.raises(RowRefused, match="`other`"):
        little.command("other", rows=ROWS | {"other": override(FLAT, WITHOUT_EFFECT)})
    assert little.trained == before


def test_a_row_that_began_before_a_setting_was_refused_goes_on(little, monkeypatch):
    rows = ROWS | {"other": override(FLAT, WITHOUT_EFFECT)}
    with monkeypatch.context() as before:
        for room in ("runs.opening", "sweeps.folder"):
            before.setattr(f"dipaco.{room}.check_settings", lambda *_: None)
        little.command(rows=rows, only=["other"])
    little.command(rows=rows)
    assert "other/0" in little.trained
