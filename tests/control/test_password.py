"""No error shows the password of a database's URL, whatever letters it has."""

import re
from pathlib import Path

import pytest

from dipaco.control.database.location import location_of, refuse_password, without_password
from dipaco.control.errors import (
    BadDatabase,
    BadDatabaseURL,
    PasswordOnCommandLine,
    VariableMissing,
)
from dipaco.control.ledger import Ledger

HAS_PASSWORD = [
    ("postgresql://ana:secret@host/db", "postgresql://ana@host/db"),
    ("postgresql://ana:sec/ret@host/db", "postgresql://ana@host/db"),
    ("postgresql://ana:sec@ret@host/db", "postgresql://ana@host/db"),
    ("postgresql://ana:sec#ret@host/db", "postgresql://ana@host/db"),
    ("postgresql://ana:sec?r@et@host/db?a=b", "postgresql://ana@host/db?a=b"),
    ("postgresql://ana:5432/ret@host:1/db", "postgresql://ana@host:1/db"),
    ("postgresql://ana@corp:secret@host/db", "postgresql://ana@corp@host/db"),
    ("postgresql://ana:secret@[::1]/db?a=b@c", "postgresql://ana@[::1]/db?a=b@c"),
    ("postgresql:///db?a=b&password=se@cret&c=d", "postgresql:///db?a=b&password=&c=d"),
    ("ana:secret@host/db", "ana@host/db"),
    ("postgresql://ana:pa?x=secret@host/db", "postgresql://ana@host/db"),
]


@pytest.mark.parametrize(("url", "shown"), HAS_PASSWORD)
def test_a_password_is_shown_nowhere_and_refused_on_a_command_line(url, shown):
    assert without_password(url) == shown
    with pytest.raises(PasswordOnCommandLine) as raised:
        refuse_password(url)
    assert not re.search("sec|ret|cret", str(raised.value))


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://host/db",
        "postgresql://ana@host:5432/db?application_name=a@b",
        "postgresql://ana@[::1]:5432/db",
        "postgresql://host:5432,other:5433/db?options=-c%20x:y@z",
        "postgresql:///db?host=/run/postgresql",
    ],
)
def test_a_url_without_a_password_is_shown_as_it_is(url):
    assert without_password(url) == url
    refuse_password(url)


@pytest.mark.parametrize("password", ["sec/ret", "sec@ret", "5432/ret", "@/ret", "sec/@"])
def test_a_password_that_a_client_reads_as_the_host_is_refused_with_the_way_to_write_it(password):
    """PostgreSQL's client ends the password at the first `/` or `@`."""
    pytest.importorskip("psycopg", reason="the extra `postgresql` is not installed")
    with pytest.raises(BadDatabaseURL, match=r"a `/` or `@` in.*`%2F`.*`%40`") as raised:
        Ledger(f"postgresql://ana:{password}@host/db", "dipaco_one")
    assert "ana@host/db" in str(raised.value)
    assert not re.search("sec|ret", str(raised.value))


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("postgresql://h/x?nothing=1", 'invalid URI query parameter: "nothing"'),
        ("postgresql://ana:secret@[bad/x", r'matching "\]" in IPv6 host address'),
        ("postgresql://ana:geh%eim@host/db", None),
        ("postgresql://ana:geh eim@host/db", None),
        ("postgresql://h/x?password=very secret", "unexpected spaces found in a value"),
        ("postgresql://h:port/x", "its port is `port`"),
        ("postgresql:///x?host=/nowhere&sslmode=secrets", "invalid sslmode value"),
    ],
)
def test_a_url_that_the_client_does_not_understand_is_refused_and_no_password_repeated(
    url, problem
):
    """A person must correct it: no machine is at fault, and no user or password."""
    pytest.importorskip("psycopg", reason="the extra `postgresql` is not installed")
    with pytest.raises(BadDatabaseURL, match=problem) as raised:
        Ledger(url, "dipaco_one")
    assert raised.value.exit_code == 2
    assert not re.search("geh|eim|secret(@|$)|very", str(raised.value))


def test_what_is_no_database_is_shown_without_its_password(monkeypatch):
    monkeypatch.setenv("PLACE", "ana:sec/ret@host/db")
    with pytest.raises(BadDatabase, match="`ana@host/db`"):
        location_of(None, "env:PLACE")


@pytest.mark.parametrize("kept", ["{}\n", "{}\r\n", " {} "])
def test_a_url_may_come_from_a_file_whose_last_line_ends(kept, monkeypatch):
    """As a secret of Kubernetes: PostgreSQL would look for the database `runs` and a line feed."""
    monkeypatch.setenv("PLACE", kept.format("postgresql://ana:secret@host/runs"))
    assert location_of(Path(), "env:PLACE").database == "postgresql://ana:secret@host/runs"
    monkeypatch.setenv("PLACE", kept.format(""))
    with pytest.raises(VariableMissing, match="is not set, or empty"):
        location_of(Path(), "env:PLACE")
