"""Failures: a task that goes wrong is counted, waits, and is given up; the others go on. On both
databases.
"""

import dataclasses

import pytest
from support.made_up_facts import receipt

from dipaco.control.claims import failures
from dipaco.control.claims.failures import FREE_DEATHS, MOST_CRASHES, MOST_ERRORS, wait_seconds
from dipaco.control.facts.facts import PartialSnapshot
from dipaco.control.planning.tasks import Task
from dipaco.errors import ClaimLost
from tests.control.conftest import claim_all, do, do_one, do_until
from tests.support.members import join, process_of

LEASE_SECONDS = 0.001


@pytest.fixture
def no_waits(monkeypatch):
    monkeypatch.setattr(failures, "wait_seconds", lambda errors, deaths: 0.0)


def state_of(ledger, task: Task) -> str:
    return {each.task: each.state for each in ledger.queue.unfinished()}.get(task, "done")


def only(ledger):
    (failure,) = ledger.failures.list()
    return failure


def lose(ledger, worker="w"):
    """A claim whose lease ends."""
    claim = ledger.queue.claim(worker, lease_seconds=LEASE_SECONDS)
    while claim is not None and ledger.queue.is_held(claim):
        ledger.reaper.reap()
    return claim


def test_a_task_that_failed_waits_while_others_go_on(ledger, plan):
    first = do_until(ledger, plan, "train")
    assert not ledger.failures.fail(first, "Diverged: nan")
    assert state_of(ledger, first.task) == "delayed"
    others = [ledger.queue.claim("w"), ledger.queue.claim("w")]
    assert all(other is not None and other.task != first.task for other in others)
    assert only(ledger)[:7] == (first.task, "delayed", 1, 0, 0, "Diverged: nan", "w")
    assert 0 < only(ledger).seconds_left <= wait_seconds(1, 0)


UNPRINTABLE = "notes/caf\udce9.txt: 'a\0b'"  # a name that is no text, a character of a binary file
PRINTABLE = "notes/caf\\udce9.txt: 'a\\0b'"


def test_whatever_an_error_quotes_it_is_counted_and_told(ledger, plan):
    for name in ("left", "died"):
        join(ledger, name)
    ledger.failures.fail(ledger.queue.claim("w"), UNPRINTABLE, is_lasting=True)
    assert only(ledger).reason == PRINTABLE
    ledger.failures.retry()
    train = do_until(ledger, plan, "train")
    ledger.redos.redo(train, Task("route"), "an object", UNPRINTABLE)
    assert ledger.redos.refusals()[0].reason == PRINTABLE
    ledger.members.leave("left", process_of("left"), UNPRINTABLE)
    ledger.queue.give_back_of("died", crash="killed", last_words=UNPRINTABLE)
    assert [one.last_words for one in ledger.members.list()] == [PRINTABLE] * 2
    told = [event.reason for event in ledger.history.after() if event.reason]
    assert told == [PRINTABLE, f"an object: {PRINTABLE}", PRINTABLE, PRINTABLE]
    assert ledger.swarms.refuse("serial", "session", UNPRINTABLE) == (PRINTABLE,)


def test_a_delay_ends(ledger):
    claim = ledger.queue.claim("w")
    ledger.failures.fail(claim, "why")
    connection = ledger._database._connection
    connection.execute("UPDATE failures SET wait_seconds = 3600")
    ledger.failures.end_delays()
    assert state_of(ledger, claim.task) == "delayed"
    connection.execute("UPDATE failures SET since = since - 3600")
    ledger.failures.end_delays()
    assert ledger.queue.claim("w").task == claim.task


@pytest.mark.parametrize("change", ["since = since + 9999", "epoch = 'before a reboot'"])
def test_a_delay_counted_by_another_clock_ends_at_once(ledger, change):
    claim = ledger.queue.claim("w")
    ledger.failures.fail(claim, "why")
    ledger._database._connection.execute(f"UPDATE failures SET wait_seconds = 3600, {change}")
    ledger.failures.end_delays()
    assert state_of(ledger, claim.task) == "ready"


def test_after_most_errors_the_task_has_failed(ledger, no_waits):
    failed = [
        ledger.failures.fail(ledger.queue.claim("w"), f"error {n}") for n in range(MOST_ERRORS)
    ]
    assert failed == [False] * (MOST_ERRORS - 1) + [True]
    assert ledger.queue.claim("w") is None
    assert (only(ledger).state, only(ledger).reason) == ("failed", f"error {MOST_ERRORS - 1}")


def test_a_run_is_stuck_when_nothing_else_can_go_on(ledger, plan):
    poison = do_until(ledger, plan, "train")
    ledger.failures.fail(poison, "why", is_lasting=True)
    assert not ledger.failures.stuck()
    while do_one(ledger, plan) is not None:
        assert state_of(ledger, poison.task) == "failed"
    assert [each.task for each in ledger.failures.stuck()] == [poison.task]


def test_texts_that_cannot_be_made_neither_hold_up_a_run_nor_make_it_fail(ledger, plan):
    plan, done = dataclasses.replace(plan, samples=True), []
    while (claim := ledger.queue.claim("w")) is not None:
        if claim.task.kind == "sample":
            assert not ledger.queue.is_finished()
            ledger.failures.fail(claim, "XlaRuntimeError: why", is_lasting=True)
        else:
            done.append(claim.task)
            do(ledger, plan, claim)
    assert done[-1] == Task("report")
    assert ledger.queue.is_finished()
    assert not ledger.queue.unfinished()
    assert not ledger.queue.unfinished_kinds()
    assert not ledger.failures.stuck()
    ledger.cleanings.check()
    failed = [each.task for each in ledger.failures.list() if each.state == "failed"]
    assert {task.kind for task in failed} == {"sample"}
    assert len(failed) == len(ledger.facts.evaluated())
    assert ledger.queue.task_counts()["sample", "base"] == {"failed": 1}
    assert ledger.failures.retry(failed[0]) == failed[:1]
    assert not ledger.queue.is_finished()
    assert do_one(ledger, plan).task == failed[0]
    assert ledger.queue.is_finished()


def test_a_stuck_run_names_the_tasks_that_it_needs(ledger, plan):
    plan, kinds = dataclasses.replace(plan, samples=True), ("sample", "report")
    while (claim := ledger.queue.claim("w")) is not None:
        if claim.task.kind in kinds:
            ledger.failures.fail(claim, "why", is_lasting=True)
        else:
            do(ledger, plan, claim)
    assert [each.task for each in ledger.failures.stuck()] == [Task("report")]


def test_a_run_is_not_stuck_while_a_task_is_held_or_delayed(ledger, plan):
    ledger.failures.fail(do_until(ledger, plan, "train"), "why", is_lasting=True)
    claims = claim_all(ledger)
    assert not ledger.failures.stuck()
    ledger.failures.fail(claims.pop(), "this one will be tried again")
    for claim in claims:
        ledger.failures.fail(claim, "why", is_lasting=True)
    assert not ledger.failures.stuck()


def test_retry_makes_it_ready_and_forgets(ledger, plan, no_waits):
    claims = [do_until(ledger, plan, "train"), ledger.queue.claim("w")]
    for claim in claims:
        ledger.failures.fail(claim, "why", is_lasting=True)
    tasks = [claim.task for claim in claims]
    assert ledger.failures.retry(tasks[1]) == [tasks[1]]
    assert [each.task for each in ledger.failures.list()] == [tasks[0]]
    assert state_of(ledger, tasks[1]) == "ready"
    assert ledger.failures.retry() == [tasks[0]]
    assert ledger.failures.list() == []
    assert ledger.failures.retry() == []


def test_a_task_that_is_done_forgets_its_failures(ledger, plan, no_waits):
    claim = do_until(ledger, plan, "train")
    ledger.failures.fail(claim, "why")
    ledger._database.change("end_delay", task_id=claim.task_id)
    while ledger.failures.list() and do_one(ledger, plan) is not None:
        pass
    assert ledger.failures.list() == []
    assert state_of(ledger, claim.task) == "done"


def test_a_lost_claim_counts_no_failure(ledger):
    stale = ledger.queue.claim("slow")
    ledger.queue.give_back_all()
    assert ledger.queue.claim("quick")
    with pytest.raises(ClaimLost):
        ledger.failures.fail(stale, "why")
    assert ledger.failures.list() == []


def test_a_failing_backup_leaves_the_task_to_the_first(ledger, plan):
    done = do_until(ledger, plan, "train")
    do(ledger, plan, done)  # what is usual is known now
    first = ledger.queue.claim("slow")
    backup = ledger.queue.claim_backup("other", factor=0.0)
    assert backup.task == first.task
    ledger.failures.fail(backup, "why", is_lasting=True)
    assert state_of(ledger, first.task) == "claimed"
    assert ledger.queue.is_held(first)


def test_preemption_never_fails_a_task_and_delays_it_only_after_some(ledger):
    for number in range(3 * MOST_CRASHES):
        claim = lose(ledger, f"w{number}")
        if number < FREE_DEATHS:
            assert state_of(ledger, claim.task) == "ready"
        else:
            assert state_of(ledger, claim.task) == "delayed"
            ledger._database.change("end_delay", task_id=claim.task_id)
    assert only(ledger)[2:5] == (0, 0, 3 * MOST_CRASHES)


def test_a_task_that_was_lost_waits_for_a_lease_at_most(ledger, plan):
    """Where all machines are so busy that they lose their leases, the first tasks are lost again
    and again; the run would stand still long after the machines are idle.
    """
    claim = do_until(ledger, plan, "train")
    ledger.failures.fail(claim, "Diverged: nan")
    ledger._database.change("end_delay", task_id=claim.task_id)
    for _ in range(2 * FREE_DEATHS):
        assert lose(ledger).task == claim.task
        ledger._database.change("end_delay", task_id=claim.task_id)
    assert only(ledger).seconds_left <= LEASE_SECONDS


def test_crashes_fail_a_task_in_the_end(ledger, no_waits):
    for number in range(MOST_CRASHES):
        assert ledger.queue.claim(f"w{number}") is not None
        assert ledger.queue.give_back_of(f"w{number}", crash="signal 9") == 1
    assert (only(ledger).state, only(ledger).crashes) == ("failed", MOST_CRASHES)
    assert only(ledger).reason == "signal 9"


def test_a_worker_that_ended_in_order_counts_nothing(ledger):
    for _ in range(MOST_CRASHES):
        assert ledger.queue.claim("w") is not None
        assert ledger.queue.give_back_of("w") == 1
    assert ledger.failures.list() == []


def test_a_partial_snapshot_forgets_crashes_and_losses(ledger, plan):
    do_until(ledger, plan, "train")
    ledger.queue.give_back_of("w", crash="signal 9")
    claim = ledger.queue.claim("w")
    partial_snapshot = PartialSnapshot(receipt("partial"), 5, "rows", (1.0,), 1.0)
    ledger.commit.release_with_snapshot(claim, partial_snapshot)
    assert only(ledger)[2:5] == (0, 0, 0)


def test_waits_grow_and_have_a_limit():
    waits = [wait_seconds(errors, 0) for errors in range(1, 9)]
    assert waits == sorted(waits)
    assert (waits[0], waits[-1]) == (1.0, failures.LONGEST_WAIT_SECONDS)
    # A task may be lost for weeks: on machines that are taken away before a phase ends, say.
    assert wait_seconds(0, 10**6) == wait_seconds(10**6, 0) == failures.LONGEST_WAIT_SECONDS
    assert [wait_seconds(0, deaths) for deaths in range(FREE_DEATHS + 2)] == [0] * 4 + [1]


def test_a_rollback_forgets_failures_of_what_it_sets_aside(finished):
    ledger = finished
    ledger.rollbacks.go_back("modular", 1, [Task("train", "modular", "0", 1)])
    claim = ledger.queue.claim("w")
    ledger.failures.fail(claim, "why", is_lasting=True)
    ledger.rollbacks.go_back("modular", 1, [Task("train", "modular", "0", 1)])
    assert ledger.failures.list() == []
    assert ledger.queue.claim("w").task == claim.task
