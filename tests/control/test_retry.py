"""A database that is away is waited for: a worker a quarter of an hour, a question some seconds."""

import contextlib

import pytest

from dipaco.control.database import retry
from dipaco.control.database.retry import RETRY_SECONDS, ConnectionLost, patience, with_retry
from dipaco.control.errors import DatabaseUnreachable


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
