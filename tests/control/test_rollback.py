"""Rollback: what is set aside, what continues, and which workers prevent it; on both databases."""

import dataclasses
import json

import pytest

from dipaco.control.keeping import rollback
from dipaco.control.ledger import open_ledger
from dipaco.control.planning.tasks import Task
from dipaco.control.process_id import ProcessId
from dipaco.errors import ClaimLost, WorkersActive
from tests.control.conftest import claim_all, do, do_all, do_until, everything
from tests.support.members import join

TRAIN = [Task("train", "modular", str(path), 1) for path in range(4)]


FACTS = ("modules", "contributions", "trained", "scores", "releases", "evaluations", "stages")


def test_a_run_that_is_redone_after_a_rollback_has_the_same_facts(finished, plan):
    before = everything(finished)
    counts = finished.rollbacks.go_back("modular", 1, TRAIN)
    assert counts == {
        "modules": 4, "contributions": 8, "trained": 4, "scores": 4, "releases": 1,
        "evaluations": 1, "stages": 1,
    }  # fmt: skip
    assert finished.progress.phases_reached("modular", 4) == 1
    assert [(u.task.kind, u.task.phase, u.state) for u in finished.queue.unfinished()] == [
        ("train", 1, "ready")
    ] * 4
    done = do_all(finished, plan)
    assert len(done) == len(set(done)) == 4 + 4 + 4 + 1 + 1
    assert done[-1] == Task("report")
    after = everything(finished)
    assert {name: after[name] for name in FACTS} == {name: before[name] for name in FACTS}


def test_texts_of_releases_that_are_set_aside_are_made_again(ledger, plan):
    plan = dataclasses.replace(plan, samples=True)
    do_all(ledger, plan)
    before = everything(ledger)["samples"]
    assert ledger.rollbacks.go_back("modular", 1, TRAIN)["samples"] == 2
    assert len(everything(ledger)["samples"]) == len(before) - 2
    done = do_all(ledger, plan)
    assert done[-2:] == [Task("sample", "modular", "", 2), Task("report")]
    assert everything(ledger)["samples"] == before


def test_what_is_set_aside_is_kept_and_listed(finished):
    rows = everything(finished)["trained"]
    finished.rollbacks.go_back("modular", 1, TRAIN)
    finished.rollbacks.go_back("modular", 0, [])
    first, second = finished.rollbacks.list()
    assert (first.arm, first.phase, first.set_aside["trained"]) == ("modular", 1, 4)
    assert (second.phase, second.set_aside["modules"]) == (0, 4)
    kept = finished._database._connection.execute(
        "SELECT body FROM set_aside WHERE kind = 'trained' ORDER BY id"
    ).fetchall()
    kept = {repr(tuple(json.loads(body))) for (body,) in kept}
    assert kept <= set(rows)
    assert len(kept) == 8


def test_facts_are_set_aside_together_and_not_by_a_journey_to_the_server_for_each(
    finished, monkeypatch
):
    change, asked = finished._database.change, []

    def counting(query, **values):
        asked.append(query)
        return change(query, **values)

    monkeypatch.setattr(finished._database, "change", counting)
    monkeypatch.setattr(rollback, "MOST_AT_ONCE", 5)
    counts = finished.rollbacks.go_back("modular", 1, TRAIN)
    assert asked.count("put_aside") == sum(-(-count // 5) for count in counts.values())
    (kept,) = finished.rollbacks.list()
    assert kept.set_aside == counts


def test_while_a_worker_holds_a_task_a_rollback_changes_nothing(ledger, plan):
    do_until(ledger, plan, "train", "busy")
    before = everything(ledger)
    with pytest.raises(WorkersActive, match=r"busy holds 1 task\. Stop them with `dipaco drain"):
        ledger.rollbacks.go_back("modular", 0, [])
    assert everything(ledger) == before


def test_a_run_does_not_go_back_while_objects_are_deleted(finished):
    retention, rollbacks = finished.retention, finished.rollbacks
    join(finished, "w", process_id=str(ProcessId.here()))
    before = everything(finished)
    assert retention.begin_deleting(lambda: ["an object"]) == ["an object"]
    for go_back in (rollbacks.begin, lambda: rollbacks.go_back("modular", 1, TRAIN)):
        with pytest.raises(WorkersActive, match="w is deleting what is not needed any more"):
            go_back()
    assert retention.may_delete()
    retention.end_deleting()
    assert everything(finished) == before
    token = rollbacks.begin()
    retention.begin_deleting(lambda: ["one that was there when the bytes were checked"])
    retention.end_deleting()
    assert rollbacks.go_back("modular", 1, TRAIN, token) is None
    token = rollbacks.begin()
    assert retention.begin_deleting(list) == []
    assert rollbacks.go_back("modular", 1, TRAIN, token)


def test_a_process_that_ended_while_it_deleted_keeps_no_run_from_going_back(finished):
    over = str(ProcessId.here()._replace(began="0"))
    join(finished, "w", process_id=over)
    finished._database.change("change_meta", key="deleting 1", value=over)
    assert finished.rollbacks.deleting_workers() == []
    assert finished.rollbacks.begin()
    assert finished._database.one("get_meta", key="deleting 1") is None


def test_who_was_silent_while_the_run_went_back_deletes_nothing_more(finished):
    join(finished, "w", process_id=str(ProcessId.here()))
    finished.retention.begin_deleting(lambda: ["an object"])
    heartbeats = next(each.heartbeats for each in finished.members.list())
    finished._database.change("mark_silent", name="w", heartbeats=heartbeats)
    assert finished.retention.may_delete()
    finished.rollbacks.begin()
    assert not finished.retention.may_delete()


def test_a_worker_that_was_silent_for_a_lease_is_too_late(ledger, plan):
    while (claim := ledger.queue.claim("zombie", lease_seconds=60)).task.kind != "train":
        do(ledger, plan, claim)
    ledger.queue.renew(claim, lease_seconds=-1.0)
    again = [Task("train", "modular", str(path), 0) for path in range(4)]
    ledger.rollbacks.go_back("modular", 0, again)
    assert not ledger.queue.held()
    with pytest.raises(ClaimLost):
        do(ledger, plan, claim)
    (later,) = (each for each in claim_all(ledger) if each.task == claim.task)
    assert later.attempt > claim.attempt
    with pytest.raises(ClaimLost):
        do(ledger, plan, claim)


def test_a_program_that_has_the_run_open_sees_the_rollback(finished, place):
    with open_ledger(*place) as other:
        assert other.progress.phases_reached("modular", 4) == 2
        finished.rollbacks.go_back("modular", 1, TRAIN)
        assert other.progress.phases_reached("modular", 4) == 1
        assert other.queue.claim("other").task == TRAIN[0]
