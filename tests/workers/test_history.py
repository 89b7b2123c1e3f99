"""The history does not grow for ever: its newest events are kept."""

import pytest

from dipaco.control.planning.tasks import Claim, Task
from dipaco.runs.opening import reading
from dipaco.workers import keeping
from dipaco.workers.keeping import PRUNE_EVERY, collect_after


@pytest.mark.parametrize(("keep", "left"), [(3, 3), (1_000_000, ...), (0, 0)])
def test_old_events_are_deleted_now_and_then(half, copy_of, monkeypatch, keep, left):
    monkeypatch.setattr(keeping, "PRUNE_EVERY", 1)
    with reading(copy_of(half).folder) as run:
        events = run.ledger.history.after()
        assert len(events) > 3
        monkeypatch.setattr(keeping, "KEPT_EVENTS", keep)
        collect_after(run, Claim(Task("evaluate", "modular", "", 1), 7, 1, "w"), set())
        expected = events if left is ... else events[len(events) - left :]
        assert run.ledger.history.after() == expected


@pytest.mark.parametrize(
    ("name", "kind", "is_its_end"),
    [
        *(("half", kind, kind == "report") for kind in ("evaluate", "sample", "report")),
        ("tiny", "sample", True),  # it has its report
    ],
)
def test_not_at_every_task_but_at_the_end_of_a_run(
    half, tiny, copy_of, monkeypatch, name, kind, is_its_end
):
    """However few tasks it has; a text that is made while others are waited for ends nothing."""
    assert PRUNE_EVERY > 100
    with reading(copy_of({"half": half, "tiny": tiny}[name]).folder) as run:
        events = run.ledger.history.after()
        monkeypatch.setattr(keeping, "KEPT_EVENTS", 1)
        collect_after(run, Claim(Task(kind, "modular", "", 1), 7, 1, "w"), set())
        assert run.ledger.history.after() == (events[-1:] if is_its_end else events)
