"""Runs in a bucket: begun once, found by their URL alone, with their facts on a server."""

import json

import pytest

from dipaco.cli.main import main
from dipaco.runs import opening
from dipaco.runs.errors import DatabaseNeeded, NoSuchRun, RunOfOtherConfig, RunOfOtherDatabase
from dipaco.runs.opening import create_or_open, has_begun, open_run, reading
from dipaco.store.address import Address
from tests.runs.test_opening import CONFIG, OTHER

pytestmark = pytest.mark.contract  # of two servers that other contracts start as well


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """`machine("a")`: from now on this is another machine."""

    def move(name):
        monkeypatch.setenv("DIPACO_CACHE", str(tmp_path / name))

    move("a")
    return move


def test_a_run_in_a_bucket_is_found_by_its_url_alone(bucket, postgresql_server, machine):
    url = f"{bucket.url}/runs/one"
    with pytest.raises(NoSuchRun, match=url), reading(Address.parse(url)):
        pass
    run, is_new = create_or_open(Address.parse(url), CONFIG, database=postgresql_server.url)
    assert is_new
    receipt = run.objects.write_bytes("k", "bin", b"content")
    run.ledger.close()
    machine("b")
    assert has_begun(Address.parse(url), OTHER, is_alone=True) is False
    assert has_begun(Address.parse(url), CONFIG)
    with reading(Address.parse(url)) as run:
        assert run.config == CONFIG
        assert run.objects.read_bytes(receipt) == b"content"
    with pytest.raises(RunOfOtherConfig, match=url):
        create_or_open(Address.parse(url), OTHER)


def test_a_run_in_a_bucket_needs_a_server(bucket, machine):
    address = Address.parse(f"{bucket.url}/one")
    with pytest.raises(DatabaseNeeded, match="SQLite serves one machine only"):
        create_or_open(address, CONFIG)
    with pytest.raises(NoSuchRun):
        open_run(address)


def test_of_two_processes_that_begin_a_run_the_first_chooses_the_database(
    bucket, postgresql_server, machine, monkeypatch
):
    address = Address.parse(f"{bucket.url}/one")
    run, _ = create_or_open(address, CONFIG, database=postgresql_server.url)
    run.ledger.close()
    monkeypatch.setenv("OTHER", f"{postgresql_server.url}?application_name=other")
    answers = iter([None])  # it was not there yet when the second looked
    look = opening.find_run
    monkeypatch.setattr(opening, "find_run", lambda *args: next(answers, look(*args)))
    with pytest.raises(RunOfOtherDatabase, match="not in env:OTHER"):
        create_or_open(address, CONFIG, database="env:OTHER")
    run = open_run(address)
    assert run.config == CONFIG
    run.ledger.close()


def test_no_password_is_written_into_the_bucket(bucket, postgresql_server, machine, monkeypatch):
    secret = postgresql_server.url.replace("postgres@", "postgres:secret@")
    monkeypatch.setenv("RUNS", secret)
    address = Address.parse(f"{bucket.url}/one")
    run, _ = create_or_open(address, CONFIG, database="env:RUNS")
    run.ledger.close()
    marker = json.loads(address.remote.read("database"))
    assert marker["database"] == "env:RUNS"
    assert "secret" not in str(marker)


def test_a_bad_run_address_is_one_sentence_on_the_command_line(capsys):
    assert main(["status", "--run", "ftp://host/run"]) == 2
    assert capsys.readouterr().err.startswith(
        "BadRun: `--run ftp://host/run`: `ftp` is not a known store"
    )
