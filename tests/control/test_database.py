"""A ledger's file: what can be wrong with it, and that each comes as a sentence."""

import contextlib
import os
import shutil
import sqlite3
from pathlib import Path

import pytest
from support.made_up_facts import stage
from support.servers import fresh_schemas

from dipaco.control.database.contract import TABLES_VERSION, queries
from dipaco.control.database.sqlite import SQLite
from dipaco.control.errors import LedgerVersion
from dipaco.control.ledger import Ledger, install_ledger, open_ledger
from dipaco.errors import DiskFull, LedgerDamaged, NotWritable, RunBusy


@pytest.fixture
def place(tmp_path):
    """Of the fixture `ledger`: here it is SQLite's."""
    return tmp_path / "ledger.sqlite", ""


def filled(file):
    ledger = Ledger(file)
    ledger.start({f"key {i}": "x" * 500 for i in range(200)})
    ledger.close()
    return file


def test_a_file_that_is_not_a_database_is_refused_closed_and_left_alone(tmp_path, monkeypatch):
    opened, connect = [], sqlite3.connect
    monkeypatch.setattr(
        sqlite3, "connect", lambda *a, **k: opened.append(connect(*a, **k)) or opened[-1]
    )
    file = tmp_path / "ledger.sqlite"
    file.write_bytes(b"this is not a database\n" * 400)
    with pytest.raises(LedgerDamaged, match=r"ledger\.sqlite cannot be read.*Restore it"):
        Ledger(file)
    assert file.read_bytes().startswith(b"this is not")
    with pytest.raises(sqlite3.ProgrammingError, match="closed database"):
        opened[0].execute("SELECT 1")


def use(file):
    with open_ledger(file) as ledger:
        ledger.meta.get("key 150")
        ledger.queue.claim("w")


@pytest.mark.parametrize("damage", ["truncated", "header", "page"])
def test_a_damaged_file_is_found_when_it_is_read(tmp_path, damage):
    file = filled(tmp_path / "ledger.sqlite")
    content = bytearray(file.read_bytes())
    if damage == "truncated":
        content = content[: len(content) // 3]
    elif damage == "header":
        content[:16] = bytes(16)
    else:
        content[4096 : 2 * 4096] = b"\xff" * 4096
    file.write_bytes(content)
    with pytest.raises(LedgerDamaged, match="Restore it from a copy"):
        use(file)


@pytest.mark.parametrize("version", [1, TABLES_VERSION + 1])
def test_a_ledger_of_another_schema_version_is_refused_and_left_alone(tmp_path, version):
    file = filled(tmp_path / "ledger.sqlite")
    with sqlite3.connect(file) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    connection.close()
    before = file.read_bytes()
    said = f"version {version}, this program writes {TABLES_VERSION}"
    with pytest.raises(LedgerVersion, match=said):
        Ledger(file)
    assert file.read_bytes() == before


def test_a_schema_of_another_version_is_refused_and_left_alone(postgresql_server):
    place = postgresql_server.url, next(fresh_schemas)
    with contextlib.closing(Ledger(*place)) as ledger:
        execute = ledger._database._connection.execute
        execute("UPDATE schema_version SET version = 1")
        with pytest.raises(LedgerVersion, match=f"version 1, this program writes {TABLES_VERSION}"):
            Ledger(*place)
        assert execute("SELECT version FROM schema_version").fetchall() == [(1,)]


def test_a_full_disk_while_finishing_leaves_the_task_claimed_and_nothing_recorded(ledger, plan):
    claim = ledger.queue.claim("w")
    connection = ledger._database._connection
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")
    large = stage("prepare")
    large.summary["text"] = "x" * 100_000
    with pytest.raises(DiskFull, match=r"No space left.*ledger\.sqlite"):
        ledger.commit.finish(plan, claim, [large])

    connection.execute("PRAGMA max_page_count = 100000")
    assert ledger.facts.stages() == []
    ledger.commit.finish(plan, claim, [large])
    assert ledger.facts.stages() == [large]


def test_what_is_recorded_is_flushed_to_the_disk_and_a_claim_is_not(ledger, plan, monkeypatch):
    """A claim that a power cut undoes costs a second claim; a fact would be missed."""
    flushed = []
    monkeypatch.setattr(os, "fsync", flushed.append)
    claim = ledger.queue.claim("w")
    assert ledger.queue.renew(claim)
    assert not flushed
    ledger.commit.finish(plan, claim, [stage("prepare")])
    assert flushed == [ledger._database._log]


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(NotWritable, match="No such file or directory"):
        Ledger(tmp_path / "no such folder" / "ledger.sqlite")


def test_a_ledger_that_another_program_keeps_locked_is_busy_and_not_damaged(ledger, tmp_path):
    other = sqlite3.connect(tmp_path / "ledger.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    ledger._database._connection.execute("PRAGMA busy_timeout = 1")
    with pytest.raises(RunBusy, match="Another process"):
        ledger.queue.claim("w")
    other.execute("ROLLBACK")
    other.close()
    assert ledger.queue.claim("w") is not None


def test_a_ledger_on_a_read_only_disk_is_read_and_so_is_one_whose_worker_was_killed(
    tmp_path, read_only
):
    (tmp_path / "killed").mkdir()
    with open_ledger(filled(tmp_path / "ledger.sqlite")) as ledger:
        with ledger._database.transaction():
            ledger._database.change("put_meta", key="late", value="in the log")
        for file in tmp_path.glob("ledger.sqlite*"):
            shutil.copy(file, tmp_path / "killed" / file.name)
    for folder in (tmp_path, tmp_path / "killed"):
        with open_ledger(read_only(folder) / "ledger.sqlite") as ledger:
            assert ledger.meta.get("late") == "in the log"
            with pytest.raises(NotWritable, match="Read-only file system"):
                ledger.queue.claim("w")
            with contextlib.closing(ledger.for_thread()) as other:
                assert other.meta.get("key 7")


def test_a_reader_and_a_writer_do_not_wait_for_each_other(ledger, tmp_path):
    """Write-ahead log: `dipaco status` may take its time while a worker records."""
    ledger._database._connection.execute("PRAGMA busy_timeout = 1")
    reader = SQLite(tmp_path / "ledger.sqlite")
    reader._connection.execute("BEGIN")
    assert reader.one("get_meta", key="new") is None
    with ledger._database.transaction():
        ledger._database.change("put_meta", key="new", value="1")
    assert reader.one("get_meta", key="new") is None
    reader._connection.execute("COMMIT")
    assert reader.one("get_meta", key="new") == ("1",)
    reader.close()


def test_a_transaction_that_fails_leaves_nothing_and_the_next_one_works(tmp_path):
    database = SQLite(tmp_path / "ledger.sqlite")

    def put_and_fail():
        with database.transaction():
            database.change("put_meta", key="a", value="1")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        put_and_fail()
    assert database.rows("get_meta", key="a") == []
    with database.transaction():
        database.change("put_meta", key="a", value="2")
    assert database.rows("get_meta", key="a") == [("2",)]
    database.close()


def test_a_ledger_that_was_closed_is_not_said_to_be_damaged(tmp_path):
    database = SQLite(tmp_path / "ledger.sqlite")
    database.close()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        database.rows("get_meta", key="a")


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql"])
def test_every_query_has_a_name_a_purpose_and_one_statement(dialect):
    assert len(queries(dialect)) > 50
    for name, text in queries(dialect).items():
        assert text.count(";") == 1, name
        assert "[[" not in text, name
        assert sqlite3.complete_statement(text), name


def test_only_its_owner_can_read_a_ledger_in_a_file(tmp_path):
    """It may hold passwords of stores in its config. Files of before are changed too."""
    file = tmp_path / "ledger.sqlite"
    before = os.umask(0)
    try:
        with contextlib.closing(SQLite(file)) as database:
            with database.transaction():
                database.change("put_meta", key="swarm_authority", value="secret")
            beside = [file, Path(f"{file}-wal"), Path(f"{file}-shm")]
            assert [oct(each.stat().st_mode & 0o777) for each in beside] == ["0o600"] * 3
            for each in beside:
                each.chmod(0o644)
            with contextlib.closing(SQLite(file)) as other:
                other.copy_to(tmp_path / "copy.sqlite")
            copy = tmp_path / "copy.sqlite"
            assert [oct(each.stat().st_mode & 0o777) for each in (*beside, copy)] == ["0o600"] * 4
            install_ledger(copy, tmp_path / "installed.sqlite")
        assert (tmp_path / "installed.sqlite").stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(before)
