"""A sweep on a page: its runs with state, progress and result, its table, and their own pages."""

import dataclasses
import json
import shutil

import pytest

pytest.importorskip("starlette", reason="the dashboard needs the `serve` extra")

from dipaco.cli.main import main
from dipaco.dashboard.sweep import SweepWatcher, sweep_at
from dipaco.runs.opening import reading
from dipaco.store.address import Address
from dipaco.store.layout import SweepLayout
from dipaco.sweeps.folder import rows_of
from dipaco.sweeps.table import make_table
from dipaco.sweeps.trials import Trial
from tests.dashboard.conftest import served
from tests.dashboard.test_server import get

PHONE = {"width": 390, "height": 800}


@pytest.fixture
def sweep(tiny, half, tmp_path):
    """One row is finished, one is half done, one cannot be read, and one has not begun."""
    layout = SweepLayout(tmp_path / "little")
    for row, of in (("2x2", tiny), ("longer", half)):
        shutil.copytree(of.folder, layout.row(row, 0))
        with reading(layout.row(row, 0)) as run:
            named = dataclasses.replace(run.requested_config, name=f"little {row}")
            run.ledger.meta.change_config(named.to_json())
    layout.row("damaged", 0).mkdir(parents=True)
    (layout.row("damaged", 0) / "ledger.sqlite").write_bytes(b"no ledger")
    layout.sweep.write_text('{"sweep": "little"}')
    with reading(tiny.folder) as run:
        trials = [Trial(row, 0, run.config) for row in ("2x2", "longer", "damaged", "last")]
    table = make_table("little", trials, {trials[0]: rows_of(tiny.folder)})
    layout.table("json").write_bytes(table.to_json())
    return layout


def asked(url):
    return json.loads(get(url)[1])


def test_its_runs_have_state_progress_and_result(sweep, tiny, half):
    with served(sweep) as (url, watcher):
        document = asked(f"{url}recording")
        runs = {run["row"]: run for run in document["runs"]}
        assert list(runs) == ["2x2", "damaged", "longer"]
        assert (runs["2x2"]["is_finished"], runs["longer"]["is_finished"]) == (True, False)
        assert runs["2x2"]["steps"] == runs["2x2"]["total_steps"]
        assert 0 < runs["longer"]["steps"] < runs["longer"]["total_steps"]
        assert runs["longer"]["work_left_seconds"] > 0
        assert "LedgerDamaged" in runs["damaged"]["state"]
        report = json.loads((tiny.folder / "report.json").read_bytes())
        (of,) = (row["perplexity"] for row in report["rows"] if row["name"] == "modular")
        table = {row["name"]: row["perplexity"] for row in document["rows"]}
        assert runs["2x2"]["perplexity"] == table["2x2"] == of
        assert runs["longer"]["perplexity"] is None or runs["longer"]["perplexity"] > of
        assert document["missing"] == ["longer, seed 0", "damaged, seed 0", "last, seed 0"]
        for row in ("2x2", "longer"):
            assert asked(f"{url}rows/{row}/0/recording")["name"] == f"little {row}"
            assert asked(f"{url}rows/{row}/0/texts")["domains"]
        assert len(watcher._watchers) == 2, "a run is watched only once its page is open"
        for wrong in ("rows/last/0/", "rows/2x2/1/recording", "rows/../0/recording"):
            assert get(url + wrong)[0] == 404, wrong


def test_a_finished_run_is_read_once(sweep, monkeypatch):
    from dipaco.dashboard import sweep as module

    watcher, read = SweepWatcher(sweep), []
    monkeypatch.setattr(module, "reading", lambda at: read.append(at.name) or reading(at))
    assert [watcher.recording() for _ in range(3)]
    assert len(read) == 7  # one finished run once, two others each time


def test_its_runs_need_its_key(sweep):
    with served(sweep, keys=("secret",)) as (url, _):
        for place in ("recording", "rows/2x2/0/recording", "rows/2x2/0/texts"):
            assert get(url + place)[0] == 401, place
            assert get(url + place, "secret")[0] == 200, place


def test_a_folder_of_one_run_is_no_sweep(tiny):
    assert sweep_at(Address.of(tiny.folder)) is None
    assert sweep_at(Address.parse("s3://bucket/run")) is None


def test_the_page_leads_to_each_run_and_a_file_of_it_does_not(sweep, browser, tmp_path):
    file = tmp_path / "page.html"
    assert main(["dashboard", "--run", str(sweep.root), "--export", str(file)]) == 0
    page, errors = browser.new_page(viewport=PHONE), []
    page.on("pageerror", lambda error: errors.append(error))
    page.goto(file.as_uri())
    page.locator("#runs tr", has_text="2x2, seed 0").wait_for()
    assert page.locator("#runs a").count() == 0
    with served(sweep) as (url, _):
        page.goto(url)
        page.locator("#headline", has_text="1 of 4 runs are finished").wait_for()
        assert page.locator("#runs tr").count() == 5
        assert page.locator("#runs tr", has_text="last, seed 0").inner_text().endswith("not begun")
        assert page.locator("#results tr[data-row='2x2']").count() == 1
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.locator("#runs a", has_text="2x2, seed 0").click()
        page.locator(".cell").first.wait_for()
        page.go_back()
        page.locator("#headline", has_text="1 of 4 runs are finished").wait_for()
    page.close()
    assert not errors
