"""The history does not grow for ever: `retention.history` events are kept."""

import dataclasses

import pytest

from dipaco.control.tasks import Claim, Task
from dipaco.errors import BadSetting
from dipaco.runs.opening import reading
from dipaco.store.retention import RetentionSettings
from dipaco.workers import garbage_collection
from dipaco.workers.garbage_collection import PRUNE_EVERY, collect_after


@pytest.mark.parametrize(("keep", "left"), [(3, 3), (None, ...), (0, 0)])
def test_old_events_are_deleted_now_and_then(half, copy_of, monkeypatch, keep, left):
    monkeypatch.setattr(garbage_collection, "PRUNE_EVERY", 1)
    with reading(copy_of(half).folder) as run:
        events = run.ledger.history.after()
        assert len(events) > 3
        retention = dataclasses.replace(run.config.retention, history=keep)
        run.config = dataclasses.replace(run.config, retention=retention)
        collect_after(run, Claim(Task("evaluate", "modular", "", 1), 7, 1, "w"), [])
        expected = events if left is ... else events[len(events) - left :]
        assert run.ledger.history.after() == expected


def test_not_at_every_task():
    assert PRUNE_EVERY > 100


def test_fewer_events_than_none_is_no_setting():
    with pytest.raises(BadSetting, match=r"retention.history"):
        RetentionSettings(history=-1)
