"""Runs in a folder with their facts on a server: the folder says which, wherever it is."""

import dataclasses
import json
import threading

import psycopg
import pytest

from dipaco.errors import LedgerDamaged
from dipaco.runs import opening
from dipaco.runs.errors import RunOfOtherConfig
from dipaco.runs.opening import create_or_open, reading
from dipaco.store.layout import Layout
from tests.runs.test_opening import CONFIG, OTHER

pytestmark = pytest.mark.contract  # of a server that other contracts start as well


@pytest.fixture
def begin(postgresql_server):
    """`begin(folder, config)`: the run as `dipaco train` would open it, with its facts closed."""

    def of(folder, config=CONFIG):
        run, is_new = create_or_open(folder, config, database=postgresql_server.url)
        run.ledger.meta.remember("mark", str(folder))
        run.ledger.close()
        return run, is_new

    return of


def mark_of(folder) -> str | None:
    with reading(folder) as run:
        return run.ledger.meta.get("mark")


def test_a_run_that_is_moved_linked_or_named_by_another_path_is_the_same_run(
    begin, tmp_path, monkeypatch
):
    first = tmp_path / "runs" / "one"
    begin(first)
    moved = tmp_path / "elsewhere" / "two"
    moved.parent.mkdir()
    first.rename(moved)
    (tmp_path / "link").symlink_to(moved)
    monkeypatch.chdir(moved)
    for name in (moved, tmp_path / "link", tmp_path / "runs" / ".." / "elsewhere" / "two", "."):
        assert mark_of(tmp_path / name if name != "." else moved.relative_to(moved)) == str(first)
    _, is_new = begin(tmp_path / "link")
    assert not is_new


def test_runs_of_long_and_foreign_names_do_not_share_their_facts(begin, tmp_path):
    """PostgreSQL cuts a name after 63 bytes."""
    long = "é" * 40
    for name in (f"{long}-one", f"{long}-other", "x" * 200, "x" * 199 + "y"):
        assert begin(tmp_path / name)[1]
    assert mark_of(tmp_path / f"{long}-one").endswith("-one")
    assert mark_of(tmp_path / f"{long}-other").endswith("-other")


def test_a_run_whose_folder_is_gone_does_not_come_back_with_its_old_config(begin, tmp_path):
    inner = dataclasses.replace(CONFIG.inner, learning_rate=0.123)
    begin(tmp_path / "one")
    (tmp_path / "one").rename(tmp_path / "lost")
    run, is_new = begin(tmp_path / "one", dataclasses.replace(CONFIG, inner=inner))
    assert is_new
    assert run.requested_config.inner.learning_rate == 0.123
    assert mark_of(tmp_path / "lost") == mark_of(tmp_path / "one")  # each says where it began
    with reading(tmp_path / "lost") as old, reading(tmp_path / "one") as new:
        assert old.identity != new.identity
        assert old.requested_config == CONFIG


@pytest.mark.parametrize(
    "tables",
    [
        "CREATE TABLE {}.tasks (x int)",
        "CREATE TABLE {}.schema_version (x int); INSERT INTO {}.schema_version VALUES (7)",
        "CREATE VIEW {}.schema_version AS SELECT 7 AS version",
        "CREATE TABLE {}.schema_version (version int); INSERT INTO {}.schema_version VALUES (7)",
    ],
)
def test_tables_of_another_program_in_its_schema_are_a_sentence_and_stay(
    begin, tmp_path, postgresql_server, tables
):
    begin(tmp_path)
    marker = Layout(tmp_path).database
    schema = f"foreign_{abs(hash(tables))}"
    marker.write_text(json.dumps({"database": postgresql_server.url, "schema": schema}))
    with psycopg.connect(postgresql_server.url, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}; {tables.replace('{}', schema)}")
        for _ in range(2):
            with pytest.raises(LedgerDamaged, match=r"postgresql://.* cannot be read"):
                mark_of(tmp_path)
        query = "SELECT count(*) FROM pg_class WHERE relnamespace = %s::regnamespace"
        assert connection.execute(query, (schema,)).fetchone() == (1,)


def test_of_two_that_begin_a_run_at_once_one_does_and_the_other_joins_it(
    begin, tmp_path, monkeypatch, postgresql_server
):
    both, real = threading.Barrier(2), opening.find_run

    def find(address):
        found = real(address)
        if found is None:
            both.wait(timeout=30)  # neither has seen the other's run
        return found

    monkeypatch.setattr(opening, "find_run", find)
    schemas = num_schemas(postgresql_server)
    ended = []

    def start():
        try:
            ended.append(begin(tmp_path / "one"))
        except BaseException as error:
            ended.append(error)

    threads = [threading.Thread(target=start) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert sorted(is_new for _, is_new in ended) == [False, True]
    assert ended[0][0].database_location == ended[1][0].database_location
    assert num_schemas(postgresql_server) == schemas + 1  # the other's is removed


def test_of_two_that_begin_other_configs_at_once_the_second_is_refused(
    begin, tmp_path, monkeypatch, postgresql_server
):
    begin(tmp_path / "one")
    answers, look = iter([None]), opening.find_run
    monkeypatch.setattr(opening, "find_run", lambda *args: next(answers, look(*args)))
    schemas = num_schemas(postgresql_server)
    with pytest.raises(RunOfOtherConfig, match="`seed` was 0 and is 1"):
        begin(tmp_path / "one", OTHER)
    assert num_schemas(postgresql_server) == schemas


def num_schemas(server) -> int:
    with psycopg.connect(server.url) as connection:
        query = "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'dipaco%'"
        return connection.execute(query).fetchone()[0]
