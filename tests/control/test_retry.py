"""A database that is away is waited for: a worker a quarter of an hour, a question some seconds."""

import contextlib

import pytest

from dipaco.control.database import retry
from dipaco.control.database.postgresql import PostgreSQL
from dipaco.control.database.retry import RETRY_SECONDS, ConnectionLost, with_retry
from dipaco.control.errors import DatabaseUnreachable
from dipaco.stopping import patience


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(retry.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(retry.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    return now


def away():
    raise ConnectionLost(place="postgresql://db/runs", problem="no route")


@pytest.mark.parametrize("seconds", [RETRY_SECONDS, 10.0])
def test_how_long_it_is_waited_for(clock, seconds):
    limit = contextlib.nullcontext() if seconds == RETRY_SECONDS else patience(seconds)
    with limit, pytest.raises(DatabaseUnreachable, match="postgresql://db/runs could not be"):
        with_retry(away, lambda: None)
    assert seconds < clock[0] < seconds + 6.0


def test_a_limit_inside_another_is_no_longer_than_it(clock):
    with patience(10.0), patience(60.0), pytest.raises(DatabaseUnreachable):
        with_retry(away, lambda: None)
    assert clock[0] < 16.0


def test_a_server_that_was_never_reached_is_waited_for_a_minute(clock):
    with pytest.raises(
        DatabaseUnreachable, match=r"127\.0\.0\.1:1/runs could not be reached for 6"
    ):
        PostgreSQL("postgresql://127.0.0.1:1/runs", "schema")
    assert 60.0 < clock[0] < 66.0
