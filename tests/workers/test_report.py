"""What the report says of a run: costs of the machines that work at once, and how it is routed."""

import dataclasses

import pytest

from dipaco.config import DENSE, MODULAR, ReportSettings
from dipaco.evaluation import plots
from dipaco.evaluation.tables import PathShare
from dipaco.outer.config import OuterSettings
from dipaco.routing.config import RoutingConfig
from dipaco.runs.forecast.forecast import forecast
from dipaco.runs.forecast.traffic import base_bytes
from dipaco.runs.reading.progress import costs_of_start
from dipaco.runs.reading.report import files_of, make_report, renewed_report, shares_as_markdown
from dipaco.runs.reading.routing_notes import note_on_routing
from dipaco.workers.tasks.report import write_report
from tests.support.tiny_run import TOY
from tests.workers.conftest import CONFIG, finish


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_costs_of_a_machine_are_those_of_one_that_works_in_every_phase(begin, share):
    """With half of four paths in a phase, two machines do all the work."""
    run = begin(
        dataclasses.replace(
            CONFIG, outer=OuterSettings(path_share=share), baselines=("dense",), phases=4, seed=3
        )
    )
    finish(run)
    report = make_report(run)
    row, dense = (next(r for r in report.rows if r.name == name) for name in (MODULAR, DENSE))
    assert f"saw {dense.tokens / row.tokens:.0%} of the tokens" in (note := report.notes[1])
    assert "`baselines=dense_equal_tokens`" in note
    totals, base = run.ledger.progress.training_totals(MODULAR), CONFIG.base.steps
    at_once = round(4 * share)
    assert row.steps == base + 4 * CONFIG.inner.steps
    assert row.bytes_per_machine == forecast(run.config).run_bytes > 0
    start = costs_of_start(run, 4, "there@4", is_measured_alike=False)
    assert (start.machines, start.steps) == (at_once, 4 * CONFIG.inner.steps)
    of_base = base_bytes(run.config) / at_once
    assert start.machine_bytes + of_base == pytest.approx(row.bytes_per_machine, abs=1)
    of_base = row.seconds - totals.seconds
    assert row.machine_seconds == pytest.approx(of_base + totals.seconds / at_once, abs=0.002)


def test_the_note_on_routing_speaks_of_another_row_only_where_there_is_one():
    config = dataclasses.replace(TOY, routing=RoutingConfig(rule="likelihood"))
    assert "; the row beside it by features" in note_on_routing(config)
    evaluation = dataclasses.replace(config.evaluation, best_path=False, ensembles=False)
    note = note_on_routing(dataclasses.replace(config, evaluation=evaluation))
    assert note.endswith("flops in all).")
    assert "beside" not in note


class Bucket(dict):
    """Of files; the process ends while it sends one of them."""

    ends_at = None

    def write(self, name, content):
        self.reach(name)
        self[name] = content

    def reach(self, place):
        if place == self.ends_at:
            raise KeyboardInterrupt


@pytest.fixture
def finished(begin, monkeypatch):
    """A run with a report, in a bucket."""
    run, bucket = begin(dataclasses.replace(CONFIG, phases=1), until="the end"), Bucket()
    run.objects.remote = bucket

    def draw_report(report, file):
        bucket.reach("picture")
        file.write_bytes(report.to_json()[::-1])

    monkeypatch.setattr(plots, "draw_report", draw_report)
    return run


def renew(run, link_megabits):
    """The files of the report by these settings."""
    run.config = dataclasses.replace(
        run.config, report=ReportSettings(link_megabits=(link_megabits,))
    )
    renewed_report(run)
    return {file.name: file.read_bytes() for file in files_of(run).values()}


@pytest.mark.parametrize("ends_at", ["picture", "report.md", "report.png", "report.json"])
def test_a_renewal_that_was_interrupted_is_done_again(finished, ends_at):
    """By other settings, or by those that the files were of before."""
    bucket = finished.objects.remote
    written = {megabits: renew(finished, megabits) for megabits in (100.0, 20.0)}
    assert all(written[100.0][name] != written[20.0][name] for name in bucket)
    for next_megabits in (100.0, 20.0):
        assert renew(finished, 20.0) == written[20.0] == bucket
        bucket.ends_at = ends_at
        with pytest.raises(KeyboardInterrupt):
            renew(finished, 100.0)
        bucket.ends_at = None
        assert renew(finished, next_megabits) == written[next_megabits] == bucket


def test_a_picture_that_fails_takes_nothing_else_away(begin, monkeypatch):
    """The report is there, says why it has no picture, and has one once it can be drawn."""
    run = begin(dataclasses.replace(CONFIG, phases=1), until="the end")
    files = files_of(run)
    with monkeypatch.context() as broken:
        broken.setattr(plots, "draw_report", lambda report, file: 1 / file.write_bytes(b""))
        (fact,) = write_report(run, None)
        assert set(fact.artifacts) == {"report.json", "report.md"}
        report, _ = renewed_report(run)
    assert report.notes[-1] == "The picture could not be drawn: ZeroDivisionError: division by zero"
    assert report.notes[-1] in files["md"].read_text()
    renewed_report(run)
    assert files["png"].exists()
    assert "could not" not in files["md"].read_text()


def test_names_of_domains_are_text_in_markdown():
    share = PathShare(path=0, documents=4, domains={"<b>[x](y)`": 1, "a|b": 3})
    shown = shares_as_markdown([share]).splitlines()[-1]
    assert shown == "| 0 | 4 | a&#124;b 75%, &#60;b&#62;&#91;x&#93;(y)&#96; 25% |"
