"""The reader on both databases: the same events, and few questions."""

import contextlib
import dataclasses
import types

import numpy as np
import pytest
from support.servers import fresh_schemas

from dipaco.control.database.postgresql import PostgreSQL
from dipaco.control.database.sqlite import SQLite
from dipaco.control.ledger import Ledger
from dipaco.dashboard.facts import EventRow, RunFacts
from dipaco.dashboard.reader import Reader, statement
from dipaco.dashboard.recording import difference_of, recording_of, state_of, to_json
from dipaco.dashboard.watcher import Pace
from dipaco.runs.opening import create_or_open
from tests.control.conftest import do_one, finished, ledger, place, plan  # noqa: F401
from tests.support.tiny_run import TOY


@pytest.fixture(params=["sqlite", "postgresql"])
def run(request, tmp_path):
    """One that has just begun."""
    database = None
    if request.param == "postgresql":
        database = request.getfixturevalue("postgresql_server").url
    run, _ = create_or_open(tmp_path / next(fresh_schemas), TOY, database=database)
    with contextlib.closing(run.ledger):
        yield run


@contextlib.contextmanager
def counted(monkeypatch):
    """How many statements are sent, in a list of one number."""
    asked = [0]
    with monkeypatch.context() as patch:
        for of, name in ((SQLite, "_execute"), (PostgreSQL, "_execute"), (Ledger, "select")):
            plain = getattr(of, name)

            def also_counted(*arguments, _plain=plain, **values):
                asked[0] += 1
                return _plain(*arguments, **values)

            patch.setattr(of, name, also_counted)
        yield asked


def test_what_happens_is_read_once_and_in_order(run):
    reader = Reader(run)
    assert reader.read().is_new
    assert reader.claims == []
    claim = run.ledger.queue.claim("w")
    change = reader.read()
    assert change.is_new
    assert [row[:6] for row in reader.claims] == [["prepare", "read", "0", 0, 1, "w"]]
    run.ledger.failures.fail(claim, "BadText: what there is")
    change = reader.read()
    assert (change.first_event, change.outcomes) == (0, {"error"})
    assert reader.claims == []
    assert not reader.read().is_new
    names = recording_of(reader, state_of(reader))["names"]
    assert names["reasons"] == ["BadText: what there is"]
    assert names["kinds"] == ["prepare"]


def test_a_page_asks_a_server_less_than_once_a_second(run, monkeypatch):
    reader, pace = Reader(run), Pace(is_server=True)
    reader.read()
    with counted(monkeypatch) as asked:
        state = state_of(reader)
        of_status, asked[0] = asked[0], 0
        claim = run.ledger.queue.claim("w")
        run.ledger.failures.fail(claim, "BadText: what there is")
        asked[0] = 0
        reader.read()
        of_look, asked[0] = asked[0], 0
        to_json(recording_of(reader, state))
    busiest = (
        of_status / min(pace.status_seconds, pace.fault_seconds) + (of_look + 4) / pace.look_seconds
    )
    # And two more where modules stepped and paths were trained, and both ends of a transaction.
    assert 0 < of_look <= 2
    assert busiest < 1, (of_status, of_look)


def test_facts_that_came_since_an_event_are_all_facts_at_the_first(finished):  # noqa: F811
    """On both databases: what is read at once, and what is read bit by bit, are the same rows."""
    select, at = finished.select, {"arm": "modular"}
    steps = select(statement("steps"), **at)
    assert len(steps) == 4 * 2
    assert sorted(select(statement("steps_since"), number=0, **at)) == sorted(steps)
    phases = select(statement("phases"))
    assert len(phases) == 2 + 4 * 2 + 3
    since = {"number": 0, "synchronous": '["other"]'}
    assert sorted(select(statement("phases_since"), **since)) == sorted(phases)
    twice = {"number": 0, "synchronous": '["modular", "other"]'}
    assert len(select(statement("phases_since"), **twice)) == 2 + 4 * 2 * 4 + 3
    events = select(statement("events"), number=0, most=1000)
    assert [row[0] for row in events] == [event.number for event in finished.history.after()]
    last = events[-1][0]
    assert select(statement("events"), number=0, most=3) == events[:3]
    for name, more in (("steps_since", at), ("phases_since", {"synchronous": "[]"})):
        assert select(statement(name), number=last, **more) == []


@pytest.mark.parametrize("reads_before", [False, True])
def test_what_is_recorded_during_a_read_has_the_time_of_its_event(
    ledger,  # noqa: F811
    place,  # noqa: F811
    plan,  # noqa: F811
    monkeypatch,
    reads_before,
):
    run, select = types.SimpleNamespace(plan=plan, ledger=ledger), ledger.select
    reader = Reader(run)
    while do_one(ledger, plan).task.kind != "outer":
        pass
    if reads_before:
        reader.read()
        while do_one(ledger, plan).task.kind != "outer":
            pass
    with contextlib.closing(Ledger(*place)) as other:

        def overtaken(text, **values):
            rows = select(text, **values)
            if text == statement("events"):
                while do_one(other, plan) is not None:
                    pass
            return rows

        monkeypatch.setattr(ledger, "select", overtaken)
        reader.read()
        monkeypatch.setattr(ledger, "select", select)
    reader.read()
    at_once = Reader(run)
    at_once.read()
    for name, arm in reader.facts.arms.items():
        assert (arm.train_times > 0).all()
        for column in ("step_times", "train_times", "norms"):
            same = getattr(at_once.facts.arms[name], column)
            assert np.array_equal(getattr(arm, column), same, equal_nan=True), (name, column)


def test_a_fact_has_no_time_but_that_of_its_event_once_that_is_read(plan):  # noqa: F811
    facts = RunFacts(plan)
    arm = facts.arms["modular"]
    arm.norms[:] = 1.0
    arm.fill_times(is_first=True)
    assert (arm.step_times == 0).all()
    first = EventRow(1, "outer", "modular", "early/0000", 0, 1, "w", "m", 100.0, 103.0, "done", "")
    facts.add(first)
    facts.add(first._replace(number=2, attempt=2, ended=109.0))  # done again, it is what it was
    arm.fill_times()
    assert arm.step_times[0, arm.module_number["early/0000"]] == 0  # a later phase was over by then
    facts.add(first._replace(number=3, phase=1, ended=104.0))
    arm.fill_times()
    assert arm.step_times[:2, arm.module_number["early/0000"]].tolist() == [3, 4]
    arm.forget_from(1)
    assert np.isnan(arm.norms[1]).all()
    arm.norms[:] = 1.0
    arm.fill_times()
    assert arm.step_times[0, arm.module_number["early/0000"]] == 3
    assert np.isnan(arm.step_times[1]).all()


def test_texts_are_told_with_the_time_they_were_made_at(ledger, plan):  # noqa: F811
    plan = dataclasses.replace(plan, samples=True)
    run = types.SimpleNamespace(plan=plan, ledger=ledger)
    reader, told, made = Reader(run), [], {}
    reader.read()
    while (claim := do_one(ledger, plan)) is not None:
        names = {kind: len(each) for kind, each in reader.facts.names().items()}
        difference = difference_of(reader, reader.read(), None, names)
        assert ("completions" in difference) == (claim.task.kind == "sample")
        told = difference.get("completions", told)
        if claim.task.kind == "sample" and claim.task.arm == "modular":
            made[claim.task.phase] = reader.facts.last_seconds
    assert list(made) == [1, 2]
    expected = [
        (phase, sample.path, sample.prompt, sample.text, pytest.approx(made[phase], abs=1e-3))
        for phase, fact in zip(made, ledger.facts.samples("modular"), strict=True)
        for sample in fact.samples
    ]
    of = ("phase", "path", "prompt", "text", "seconds")
    assert [tuple(each[name] for name in of) for each in told] == expected
    at_once = Reader(run)
    at_once.read()
    run.config = TOY
    assert recording_of(at_once, {})["completions"] == told
    ledger.rollbacks.go_back("modular", 1, [])
    assert reader.read().has_gone_back
    assert {each["phase"] for each in recording_of(reader, {})["completions"]} == {1}
    assert ("modular", 2) not in reader.facts.sampled
    ledger.history.prune(0)
    later = Reader(run)
    later.read()
    assert {each["seconds"] for each in recording_of(later, {})["completions"]} == {0.0}
