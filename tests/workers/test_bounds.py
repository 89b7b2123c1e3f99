"""Where shards are outside their bounds, `status` and the report say so with figures."""

from types import SimpleNamespace

import pytest

from dipaco.observe.details import details
from dipaco.runs.reading.report import make_report
from dipaco.runs.reading.routing_notes import sentence_on_shards
from dipaco.runs.reading.status import status_of
from tests.workers.conftest import CONFIG, changed, finish


@pytest.mark.slow
def test_status_and_report_say_which_shards_are_outside_and_by_how_much(begin):
    all_alike = {"capacity": 1.0, "floor": 1.0}  # too much
    run = begin(changed(CONFIG, routing=all_alike, phases=1))
    finish(run)
    documents = run.stage("route").summary["documents"]
    largest = max(range(4), key=documents.__getitem__)
    figures = f"path {largest} {documents[largest] / sum(documents):.1%}"
    assert len(set(documents)) > 1, "the bounds hold for the training documents, too"
    status = status_of(run)
    shown = "\n".join(details(status))
    (note,) = (note for note in make_report(run).notes if "outside" in note)
    for said in (status["outside_bounds"], shown, note):
        assert figures in said
        assert "mean 25.0% to 25.0%" in said


def test_where_all_are_inside_nothing_is_said(begin):
    run = begin(changed(CONFIG, routing={"capacity": None, "floor": 0.0}, phases=1))
    finish(run)
    status = status_of(run)
    assert status["outside_bounds"] == ""
    assert "outside" not in "\n".join([*details(status), *make_report(run).notes])


@pytest.mark.parametrize("overlap", [1, 2, 4])
def test_the_advice_counts_a_document_once_however_many_paths_it_trains(overlap):
    """Of 1,000 training documents: fifty to each of four paths are a fifth."""
    routing = {"capacity": 1.0, "floor": 1.0, "overlap": overlap}
    run = SimpleNamespace(
        rules={},
        config=changed(CONFIG, routing=routing, data={"router_fraction": 0.05}),
        corpus=SimpleNamespace(documents=lambda split: {"train": range(1000)}[split]),
    )
    documents = [count * overlap for count in (400, 200, 200, 200)]
    said = sentence_on_shards(run, documents, 0)
    assert said.endswith("`data.router_fraction` is 0.05 here: try 0.2 in a new run.")
