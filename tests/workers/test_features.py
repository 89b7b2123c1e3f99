"""Features in slices: the routing of one slice, bit for bit, also of later phases."""

import dataclasses
import functools

import pytest

from dipaco.control.planning.tasks import Task
from dipaco.runs import routing
from dipaco.workers.keeping import collect_all
from tests.workers.conftest import CONFIG, changed, work_until, work_while, worker_of

ALTERNATING = changed(CONFIG, routing={"alternations": (1,)}, evaluation={"max_documents": 20})
BATCH = 8


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    """So that a split has several, and the last one is not full."""
    in_batches = functools.partial(routing.features, batch_size=BATCH)
    monkeypatch.setattr("dipaco.runs.routing.features", in_batches)
    monkeypatch.setattr("dipaco.workers.tasks.features.BATCH_DOCUMENTS", BATCH)
    for room in ("runs.routing", "workers.tasks.features"):
        monkeypatch.setattr(f"dipaco.{room}.CHUNK_DOCUMENTS", 3 * BATCH)


def in_slices(count):
    return changed(ALTERNATING, data={"slices": count})


def unfinished(run):
    return [str(each.task) for each in run.ledger.queue.unfinished()]


def until_features(run):
    worker = worker_of(run)
    work_while(lambda: unfinished(run)[0] != "route features slice 0", worker)
    return worker


def without_seconds(stage):
    return dataclasses.replace(stage, seconds=0.0)


def test_documents_are_routed_the_same_for_any_number_of_slices(begin):
    alone, sliced = begin(ALTERNATING, name="alone"), begin(in_slices(5), name="sliced")
    work_until(alone, 2)
    ana, bo = until_features(sliced), worker_of(sliced, "bo")
    for worker in (ana, bo, ana, bo):
        assert len(unfinished(sliced)) > 1
        assert worker.run_once()
    assert unfinished(sliced) == ["route features slice 4"]
    assert bo.run_once()
    assert unfinished(sliced) == ["route"]
    assert ana.run_once()
    assert len(sliced.objects.names("objects/features")) == 5, "the next routing reads them"
    work_until(sliced, 2)
    for phase in (0, 1):
        one, many = (without_seconds(run.stage("route", phase)) for run in (alone, sliced))
        assert many == one
    assert not sliced.objects.names("objects/features")


def test_the_recorded_features_are_read_and_not_computed(begin, monkeypatch):
    run = begin(in_slices(2))
    worker = until_features(run)
    assert worker.run_once()
    assert worker.run_once()
    monkeypatch.setattr("dipaco.runs.routing.features", None)
    assert worker.run_once()
    assert run.stage("route").artifacts


def test_features_that_are_lost_are_made_again(begin):
    run = begin(in_slices(2))
    worker = until_features(run)
    assert worker.run_once()
    assert worker.run_once()
    for name in run.objects.names("objects/features"):
        run.objects.delete(name)
    assert worker.run_once()
    assert unfinished(run) == ["route features slice 0", "route"]
    work_until(run, 1)
    assert run.ledger.redos.newest_refusal() == 2


def test_features_are_kept_until_the_last_routing(begin):
    run = begin(in_slices(2))
    until_features(run)
    work_until(run, 0)
    collect_all(run)
    assert len(run.objects.names("objects/features")) == 2


def test_a_routing_that_is_made_again_computes_its_features(begin):
    run = begin(in_slices(2))
    work_until(run, 2)
    assert not run.objects.names("objects/features")
    before = without_seconds(run.stage("route", 1))
    with run.ledger._database.transaction():
        run.ledger._database.change("redo_task", **Task("route", phase=1)._asdict())
    work_while(lambda: "route phase 1" in unfinished(run), worker_of(run))
    assert without_seconds(run.stage("route", 1)) == before


def test_a_row_that_needs_no_features_computes_none_of_the_tasks_of_another_row(begin, monkeypatch):
    run = begin(in_slices(2))
    worker = until_features(run)
    monkeypatch.setattr(type(run), "plan", dataclasses.replace(run.plan, feature_slices=0))
    monkeypatch.setattr("dipaco.runs.routing.features", None)
    assert worker.run_once()
    assert "route" in unfinished(run)


@pytest.mark.parametrize("kind", ["random", "small_models"])
def test_routers_that_need_no_features_of_documents_wait_for_none(kind):
    assert changed(in_slices(4), routing={"kind": kind}).plan.feature_slices == 0
    assert in_slices(4).plan.feature_slices == 4
