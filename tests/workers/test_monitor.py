"""The monitor: its events, and when no worker is left."""

from dipaco.workers.monitor import Monitor
from tests.support.members import join, process_of


def test_the_monitor_is_alone_when_all_workers_have_left_or_are_silent(ledger):
    monitor = Monitor(ledger)
    assert monitor.look() == []
    assert monitor.is_alone
    for name in ("one", "two"):
        join(ledger, name)
    monitor.look()
    assert not monitor.is_alone
    ledger.members.leave("one", process_of("one"))
    monitor.look()
    assert not monitor.is_alone

    impatient = Monitor(ledger, silent_seconds=-1.0)
    assert [(event.name, event.fields["worker"]) for event in impatient.look()] == [
        ("worker_silent", "two")
    ]
    assert impatient.is_alone
    ledger.members.leave("two", process_of("two"))
    monitor.look()
    assert monitor.is_alone


def refuse(ledger, *names):
    with ledger._database.transaction():
        for name in names:
            ledger._database.change("put_refusal", what=name, reason="", task="", worker="w")


def reported(monitor):
    return [event.fields["what"] for event in monitor.look() if event.name == "refused"]


def test_every_refusal_is_reported_once_however_many_there_are(ledger):
    refuse(ledger, *(f"old {number}" for number in range(150)))
    monitor = Monitor(ledger)
    assert reported(monitor) == []
    refuse(ledger, "one")
    assert reported(monitor) == ["one"]
    many = [f"of many {number}" for number in range(250)]
    refuse(ledger, *many)
    assert reported(monitor) == many
    refuse(ledger, "last")
    assert reported(monitor) == ["last"]
    assert reported(monitor) == []


def test_a_refusal_that_is_recorded_after_one_with_a_higher_number_is_reported(ledger):
    """Of two transactions on PostgreSQL, the second to begin may be the first to commit."""
    monitor = Monitor(ledger)
    refuse(ledger, "first", "second")
    ledger._database._connection.execute("UPDATE refusals SET id = 7 WHERE what = 'second'")
    assert reported(monitor) == ["first", "second"]
    refuse(ledger, "late")
    ledger._database._connection.execute("UPDATE refusals SET id = 5 WHERE what = 'late'")
    assert reported(monitor) == ["late"]
