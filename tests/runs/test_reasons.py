"""A reason is said once on a terminal: by the event, or by the error that ends the command."""

from types import SimpleNamespace

import pytest

from dipaco.control.planning.tasks import Task
from dipaco.observe.events import Event
from dipaco.runs.reading.events import terminal_line

PREPARE, TRAIN = Task("prepare", "", "", 0), Task("train", "modular", "0", 1)


def given_up(task):
    return Event("task_given_up", {"task": str(task), "reason": "BinaryText: 0xff."}, "error")


def ledger(*stuck):
    failures = [SimpleNamespace(task=task) for task in stuck]
    return SimpleNamespace(failures=SimpleNamespace(stuck=lambda: failures))


def test_what_ends_the_run_is_named_without_its_reason():
    line = terminal_line(given_up(PREPARE), ledger(PREPARE, TRAIN))
    assert line == f"error: {PREPARE} has failed, and the run cannot go on"


@pytest.mark.parametrize("stuck", [(), (PREPARE, TRAIN)])
def test_a_failure_that_no_error_will_explain_has_its_reason(stuck):
    event = given_up(TRAIN)
    assert terminal_line(event, ledger(*stuck)) == event.line
    assert "BinaryText: 0xff." in event.line


def test_other_events_ask_the_ledger_nothing():
    event = Event("run_paused", {"order": "pause"})
    assert terminal_line(event, None) == event.line
