"""Upgrading a ledger's tables, shown with a migration of the test's own; on both databases."""

import contextlib
import shutil
from importlib.resources import as_file

import pytest

from dipaco.control import database
from dipaco.control.errors import LedgerOlder
from dipaco.control.ledger import Ledger

SECOND = """
ALTER TABLE refusals ADD COLUMN times BIGINT NOT NULL DEFAULT 1;
UPDATE tasks SET attempt = attempt + 1 WHERE kind = 'prepare';
"""


@pytest.fixture
def older(place, tmp_path, monkeypatch):
    """A run's place, whose tables are of version 1, while the program works with version 2."""
    with contextlib.closing(Ledger(*place)) as ledger:
        ledger.start({"config": "as it was"})
        ledger._database._connection.execute("UPDATE tasks SET attempt = 6")
    with as_file(database.SCHEMA) as schema:
        shutil.copytree(schema, tmp_path / "schema")
    for dialect in ("sqlite", "postgresql"):
        (tmp_path / "schema" / dialect / "002_times.sql").write_text(SECOND)
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


def test_tables_of_an_older_version_are_left_alone_until_they_are_upgraded(older):
    """Other processes may be at work on them, with the version that made them."""
    before = content(older)
    with pytest.raises(LedgerOlder, match=r"version 1, and this program works with 2.*upgrade"):
        Ledger(*older)
    assert content(older) == before
    with contextlib.closing(Ledger(*older, allows_older=True)) as ledger:
        assert ledger.meta.get("config") == "as it was"
        assert ledger.meta.upgrade("9.9") == (1, 2)
        assert ledger.meta.command() == ("run", "9.9")
        assert ledger.meta.upgrade("9.9") == (2, 2)
    with contextlib.closing(Ledger(*older)) as ledger:
        assert ledger.queue.claim("w").attempt == 8
        ledger._database._connection.execute("SELECT times FROM refusals")


def test_a_new_database_is_given_the_newest_tables_at_once(older, tmp_path):
    where, schema = older
    new = (where, f"{schema}_new") if schema else (tmp_path / "new.sqlite", "")
    with contextlib.closing(Ledger(*new)) as ledger:
        assert ledger.meta.upgrade("9.9") == (2, 2)
