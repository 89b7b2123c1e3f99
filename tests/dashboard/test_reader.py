"""The reader on both databases: the same events, and few questions."""

import contextlib

import pytest
from support.servers import fresh_schemas

from dipaco.control.ledger import Ledger
from dipaco.control.postgresql import PostgreSQL
from dipaco.control.sqlite import SQLite
from dipaco.dashboard.reader import Reader, statement
from dipaco.dashboard.recording import recording_of, state_of, to_json
from dipaco.dashboard.watcher import Pace
from dipaco.runs.opening import create_or_open
from tests.control.conftest import finished, ledger, place, plan  # noqa: F401
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
    assert [row[:6] for row in reader.claims] == [["prepare", "", "", 0, 1, "w"]]
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
        of_status / min(pace.status_seconds, pace.fault_seconds) + (of_look + 2) / pace.look_seconds
    )
    assert 0 < of_look <= 2  # and two more where modules stepped and paths were trained
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
