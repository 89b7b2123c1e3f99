"""The monitor: its events, and when no worker is left."""

import pytest

from dipaco.control.ledger import open_ledger
from dipaco.workers.monitor import Monitor

HERE = {"host": "home", "pid": 1, "life": "one", "machine": "a cpu", "version": "0"}


@pytest.fixture
def ledger(tmp_path):
    with open_ledger(tmp_path / "ledger.sqlite") as ledger:
        ledger.start({})
        yield ledger


def test_the_monitor_is_alone_when_all_workers_have_left_or_are_silent(ledger):
    monitor = Monitor(ledger)
    assert monitor.look() == []
    assert monitor.is_alone
    for name in ("one", "two"):
        ledger.members.join(name, **HERE)
    monitor.look()
    assert not monitor.is_alone
    ledger.members.leave("one", "one")
    monitor.look()
    assert not monitor.is_alone

    impatient = Monitor(ledger, silent_seconds=-1.0)
    assert [(event.name, event.fields["worker"]) for event in impatient.look()] == [
        ("worker_silent", "two")
    ]
    assert impatient.is_alone
    ledger.members.leave("two", "one")
    monitor.look()
    assert monitor.is_alone
