"""Upgrading a ledger's tables, shown with a migration of the test's own; on both databases."""

import contextlib
import shutil
from importlib.resources import as_file

import pytest

from dipaco.control.database import contract as database
from dipaco.control.errors import LedgerOlder
from dipaco.control.ledger import Ledger
from dipaco.control.members.leaderboard import leaderboard
from dipaco.control.members.swarms import GroupStep
from tests.control.conftest import do_one

NOW = database.newest_version("sqlite")
NEXT = """
ALTER TABLE refusals ADD COLUMN times BIGINT NOT NULL DEFAULT 1;
UPDATE tasks SET attempt = attempt + 1 WHERE kind = 'prepare';
"""


@pytest.fixture
def older(place, tmp_path, monkeypatch):
    """A run's place, whose tables are of a version before the one that the program works with."""
    with contextlib.closing(Ledger(*place)) as ledger:
        ledger.start({"config": "as it was"})
        ledger._database._connection.execute("UPDATE tasks SET attempt = 6")
    with as_file(database.SCHEMA) as schema:
        shutil.copytree(schema, tmp_path / "schema")
    for dialect in ("sqlite", "postgresql"):
        (tmp_path / "schema" / dialect / f"{NOW + 1:03}_times.sql").write_text(NEXT)
    monkeypatch.setattr(database, "SCHEMA", tmp_path / "schema")
    return place


def content(place):
    """What a test can see of a database that must not change: SQLite's bytes, a server's rows."""
    where, schema = place
    if not schema:
        return where.read_bytes()
    with contextlib.closing(Ledger(where, schema, allows_older=True)) as ledger:
        execute = ledger._database._connection.execute
        of = "SELECT column_name FROM information_schema.columns WHERE table_name = 'refusals'"
        return [
            execute(query).fetchall()
            for query in (
                f"{of} AND table_schema = '{schema}' ORDER BY column_name",
                "SELECT version FROM schema_version",
                "SELECT id, kind, state, attempt FROM tasks",
            )
        ]


def upgrade(ledger, clear=lambda: None):
    """Versions of the tables, before and now."""
    versions = ledger.meta.upgrade_tables()
    ledger.meta.pin("9.9", clear)
    return versions


def test_tables_of_an_older_version_are_left_alone_until_they_are_upgraded(older):
    """Other processes may be at work on them, with the version that made them."""
    before = content(older)
    sentence = rf"version {NOW}, and this program works with {NOW + 1}.*upgrade"
    with pytest.raises(LedgerOlder, match=sentence):
        Ledger(*older)
    assert content(older) == before
    with contextlib.closing(Ledger(*older, allows_older=True)) as ledger:
        assert ledger.meta.get("config") == "as it was"
        assert upgrade(ledger) == (NOW, NOW + 1)
        assert ledger.meta.command() == ("run", "9.9")
        assert upgrade(ledger) == (NOW + 1, NOW + 1)
    with contextlib.closing(Ledger(*older)) as ledger:
        assert ledger.queue.claim("w").attempt == 8
        ledger._database._connection.execute("SELECT times FROM refusals")


def test_a_new_database_is_given_the_newest_tables_at_once(older, tmp_path):
    where, schema = older
    new = (where, f"{schema}_new") if schema else (tmp_path / "new.sqlite", "")
    with contextlib.closing(Ledger(*new)) as ledger:
        assert upgrade(ledger) == (NOW + 1, NOW + 1)


def test_both_databases_are_brought_to_the_same_version():
    assert database.migrations("sqlite").keys() == database.migrations("postgresql").keys()


def test_a_drain_ends_on_the_tables_that_it_began_on_or_with_the_pin(older):
    """Else workers of the program of before would go on with tables that it does not know."""
    with contextlib.closing(Ledger(*older, allows_older=True)) as ledger:
        ledger.meta.begin_drain()
        assert ledger.meta.end_drain()
        assert ledger.meta.command().name == "run"
        for _ in range(2):  # the second attempt finds new tables, which it did not make
            ledger.meta.begin_drain()
            ledger.meta.upgrade_tables()
            assert not ledger.meta.end_drain()
            assert ledger.meta.command().name == "drain"
        ledger.meta.pin("9.9")
        assert ledger.meta.command().name == "run"
        ledger.meta.begin_drain()
        assert ledger.meta.end_drain()
        assert ledger.meta.command().name == "run"


@pytest.fixture
def first(place, tmp_path, monkeypatch):
    """A run's place, whose tables are the first ones."""
    with as_file(database.SCHEMA) as schema:
        shutil.copytree(schema, tmp_path / "first")
    for file in (tmp_path / "first").glob("*/00[2-9]*.sql"):
        file.unlink()
    with monkeypatch.context() as patch:
        patch.setattr(database, "SCHEMA", tmp_path / "first")
        with contextlib.closing(Ledger(*place)) as ledger:
            ledger.start({"config": "as it was"})
    return place


def test_steps_of_a_swarm_that_were_taken_before_their_shares_were_counted_count(first):
    with contextlib.closing(Ledger(*first, allows_older=True)) as ledger:
        ledger.swarms.issue("s", "ana", "volunteer", 1e12)
        for number, blocks in enumerate([{"ana/1": [0], "bo/1": [1]}, {"ana/2": [0, 1]}]):
            step = GroupStep(number, "s", 1.0, 9.0, 1.0, blocks, number)
            ledger.swarms.put_step("modular", 3, step)
        upgrade(ledger)
        ledger.swarms.put_step("modular", 3, step._replace(blocks={"ana/3": [0], "bo/1": [1]}))
        (ana,) = leaderboard(ledger.swarms, 8)
    assert (ana.samples, ana.steps, ana.paths) == (8, 2, (3,))


def test_who_is_dead_is_seen_in_the_first_tables_and_ends_in_the_newest(first):
    with contextlib.closing(Ledger(*first, allows_older=True)) as ledger:
        execute = ledger._database._connection.execute
        execute("UPDATE tasks SET state = 'claimed', attempt = 1 WHERE id = 1")
        claims = "INSERT INTO claims (task_id, attempt, worker, lease_seconds) VALUES"
        execute(f"{claims} (1, 1, 'dead', 0.0), (1, 2, 'alive', 60.0)")
        assert ledger.reaper.active() == ["alive"]
        upgrade(ledger)
        assert ledger.reaper.reap() == ["dead"]
        assert [each.worker for each in ledger.queue.held()] == ["alive"]


def test_all_claims_can_be_ended_as_the_run_is_pinned(first):
    with contextlib.closing(Ledger(*first, allows_older=True)) as ledger:
        execute = ledger._database._connection.execute
        execute("UPDATE tasks SET state = 'claimed', attempt = 2 WHERE id = 1")
        claims = "INSERT INTO claims (task_id, attempt, worker, lease_seconds) VALUES"
        execute(f"{claims} (1, 1, 'one', 60.0), (1, 2, 'backup', 60.0)")
        upgrade(ledger, ledger.reaper.end_all)
        assert ledger.queue.held() == []
        ended = {(event.worker, event.outcome) for event in ledger.history.after()}
        assert ended == {("one", "lost"), ("backup", "lost")}
        assert ledger.queue.claim("next").attempt == 3


def test_a_run_of_before_the_history_goes_on_with_one(first, plan):
    """Its claims know of no beginning."""
    with contextlib.closing(Ledger(*first, allows_older=True)) as ledger:
        assert upgrade(ledger) == (1, NOW)
    with contextlib.closing(Ledger(*first)) as ledger:
        for kind in ("prepare", "pretrain"):
            assert do_one(ledger, plan).task.kind == kind
        assert [event.outcome for event in ledger.history.after()] == ["done", "done"]
