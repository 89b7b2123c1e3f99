"""The history: every attempt at a task and what became of workers, in order, on both databases."""

import time

import pytest
from support.made_up_facts import receipt

from dipaco.control.facts.facts import PartialSnapshot
from dipaco.control.planning.tasks import Task
from dipaco.errors import ClaimLost
from tests.control.conftest import IntegrityError, do, do_one, do_until
from tests.support.members import join, process_of

MACHINE = "1 x test"


@pytest.fixture
def told(ledger):
    """(kind of task, attempt, worker, outcome) of every event, and the reason if there is one."""

    def tell(skip=0):
        return [
            (
                None if event.task is None else event.task.kind,
                event.attempt,
                event.worker,
                event.outcome,
                *([event.reason] if event.reason else []),
            )
            for event in ledger.history.after()[skip:]
        ]

    return tell


def test_a_task_that_is_done_is_told_with_its_worker_machine_and_times(ledger, plan):
    join(ledger, "w", machine=MACHINE)
    before = time.time()
    do_one(ledger, plan)
    joined, done = ledger.history.after()
    assert (joined.task, joined.worker, joined.outcome) == (None, "w", "joined")
    assert (done.task, done.attempt, done.worker) == (Task("prepare"), 1, "w")
    assert (done.machine, done.outcome, done.reason) == (MACHINE, "done", "")
    assert before - 5 < joined.ended <= done.begun <= done.ended < time.time() + 5
    assert ledger.history.after(joined.number) == [done]
    assert ledger.history.after(done.number) == []


def test_an_error_a_return_and_a_saved_snapshot_are_told_with_what_there_is_to_say(
    ledger, plan, told
):
    claim = do_until(ledger, plan, "train")
    skip = len(ledger.history.after())
    ledger.queue.give_back(claim)
    claim = ledger.queue.claim("w")
    snapshot = PartialSnapshot(receipt("partial"), 7, "rows", (2.0,), 1.0)
    ledger.commit.release_with_snapshot(claim, snapshot)
    claim = ledger.queue.claim("w")
    ledger.failures.fail(claim, "BadText: not UTF-8", is_lasting=True)
    assert told(skip) == [
        ("train", 1, "w", "given back"),
        ("train", 2, "w", "saved", "at step 7"),
        ("train", 3, "w", "error", "BadText: not UTF-8"),
    ]


def test_a_backup_that_comes_second_is_superseded(ledger, plan, told):
    claim = do_until(ledger, plan, "train")
    ledger.queue.renew(claim)
    database = ledger._database
    with database.transaction():
        row = database.one("claim_backup", task_id=claim.task_id)
        backup = ledger.queue._hold(row, "second", 60.0)
    skip = len(ledger.history.after())
    do(ledger, plan, backup)
    with pytest.raises(ClaimLost):
        do(ledger, plan, claim)
    with pytest.raises(ClaimLost):
        ledger.failures.fail(claim, "too late")
    assert sorted(told(skip)) == [("train", 1, "w", "superseded"), ("train", 2, "second", "done")]


def test_a_worker_that_dies_or_falls_silent_is_told_with_its_tasks(ledger, told, monkeypatch):
    for name in ("w", "v"):
        join(ledger, name)
    ledger.queue.claim("w", lease_seconds=0.5)
    ledger.queue.give_back_of("w", crash="killed by signal 9", last_words="no words")
    ledger.queue.give_back_of("w", crash="seen by another launcher too")
    assert told(2) == [
        (None, None, "w", "died", "no words"),
        ("prepare", 1, "w", "crash", "killed by signal 9"),
    ]

    for silence in (ledger.reaper._claims_seen, ledger.reaper._workers_seen):
        monkeypatch.setattr(silence, "over", lambda counters: list(counters))
    ledger.queue.claim("v")
    ledger.reaper.reap()
    assert told(4) == [
        (None, None, "v", "silent"),
        ("prepare", 2, "v", "lost", "its worker fell silent"),
    ]


def test_a_refused_contribution_is_told_with_its_reason(ledger, plan, told):
    claim = do_until(ledger, plan, "outer")
    skip = len(ledger.history.after())
    sent = ledger.facts.contributions(claim.task.arm, claim.task.module, claim.task.phase)
    ledger.redos.refuse(claim, sent[0], "its norm is too large")
    redone = do_until(ledger, plan, "outer")
    assert redone.task == claim.task
    reason = f"{sent[0].message.name}: its norm is too large"
    assert told(skip)[0] == ("outer", 1, "w", "postponed", reason)
    cause = Task("train", "modular", str(sent[0].path), 0)
    assert (cause, "done") in [(e.task, e.outcome) for e in ledger.history.after()[skip:]]


def test_commands_leaving_and_going_back_are_told(ledger, plan, told):
    join(ledger, "w")
    do_until(ledger, plan, "evaluate")
    ledger.queue.give_back_of_namesake("w")
    skip = len(ledger.history.after())
    ledger.meta.set_command("drain")
    ledger.members.leave("w", process_of("w"), "asked to stop")
    ledger.members.leave("w", process_of("w"), "again")
    ledger.rollbacks.go_back("modular", 1, [])
    assert told(skip) == [
        (None, None, "", "command", "drain"),
        (None, None, "w", "left", "asked to stop"),
        (None, None, "", "rollback", "modular to phase 1"),
    ]


def test_what_happened_is_never_changed(ledger, plan):
    do_one(ledger, plan)
    with pytest.raises(IntegrityError, match="never changed"):
        ledger._database._connection.execute("UPDATE history SET outcome = 'lost'")


def test_only_the_newest_events_are_kept_and_numbers_grow_though_all_are_deleted(ledger, plan):
    """Who has read up to one of them asks for higher ones."""
    for _ in range(3):
        do_one(ledger, plan)
    events = ledger.history.after()
    assert ledger.history.prune(2) == 1
    assert ledger.history.after() == events[1:]
    assert ledger.history.prune(0) == 2
    do_one(ledger, plan)
    (new,) = ledger.history.after(events[-1].number)
    assert (new.outcome, ledger.history.after()) == ("done", [new])


def test_a_worker_falls_silent_once_though_two_saw_it(ledger):
    join(ledger, "w")
    (beats,) = [count for name, count in ledger._database.rows("heard_workers") if name == "w"]
    of = {"name": "w", "heartbeats": beats}
    assert ledger._database.change("mark_silent", **of) == 1
    assert ledger._database.change("mark_silent", **of) == 0
