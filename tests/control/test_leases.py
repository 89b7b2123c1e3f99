"""Leases end, their holder alone renews them, a late task gets a backup; on both databases."""

import dataclasses
import time

import pytest
from support.made_up_facts import facts_of

from dipaco.control import clock
from dipaco.control.claims import silent_workers
from dipaco.control.planning.tasks import PathTrained, Task
from dipaco.control.process_id import ProcessId
from dipaco.errors import ClaimLost
from tests.control.conftest import do, do_until, everything
from tests.support.members import join


def test_a_lease_that_ran_out_ends_and_its_task_goes_to_another(ledger):
    silent = ledger.queue.claim("silent", lease_seconds=60.0)
    assert ledger.reaper.reap() == []
    assert ledger.queue.claim("other") is None
    assert ledger.queue.renew(silent, lease_seconds=-1.0)
    assert ledger.reaper.reap() == ["silent"]
    again = ledger.queue.claim("other")
    assert (again.task, again.attempt) == (silent.task, silent.attempt + 1)
    assert not ledger.queue.is_held(silent)


def test_the_claims_of_a_process_of_this_machine_end_a_second_after_it_is_killed_and_no_others(
    ledger, plan, other_process, monkeypatch
):
    """Nobody waits for the lease of who cannot renew it."""
    process_ids = {"killed": other_process.process_id, "here": ProcessId.here()}
    for name, process_id in process_ids.items():
        join(ledger, name, process_id=str(process_id))
    ledger.queue.give_back(do_until(ledger, plan, "train"))
    claims = {name: ledger.queue.claim(name, lease_seconds=60.0) for name in process_ids}
    assert ledger.reaper.reap() == []
    other_process.kill()
    other_process.wait()
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    assert not ledger.reaper.has_seen_one_end(), "its launcher may say how"
    assert ledger.reaper.reap() == []
    now += silent_workers.ENDED_SECONDS
    assert ledger.reaper.has_seen_one_end()
    assert ledger.reaper.reap() == ["killed"]
    assert ledger.reaper.reap() == []
    assert not ledger.reaper.has_seen_one_end()
    assert not ledger.queue.is_held(claims["killed"])
    assert ledger.queue.is_held(claims["here"])
    silent = {one.name: one.is_silent for one in ledger.members.list()}
    assert silent["killed"], "its paths are left to no home of it"
    assert not silent["here"]


def test_the_claims_of_a_process_that_was_seen_to_end_are_ended_and_not_those_of_its_successor(
    ledger,
):
    join(ledger, "w", process_id="second")
    claim = ledger.queue.claim("w")
    assert ledger.reaper.end_claims_of("w", "first") == 0
    assert ledger.queue.is_held(claim)
    assert ledger.reaper.end_claims_of("w", "second") == 1
    assert ledger.queue.claim("other").task == claim.task


def test_a_worker_that_holds_its_task_again_neither_renews_nor_finishes_it_under_its_old_claim(
    ledger, plan
):
    stale = do_until(ledger, plan, "train")
    ledger.queue.give_back(stale)
    current = do_until(ledger, plan, "train")
    assert (current.task, current.worker) == (stale.task, stale.worker)
    assert not ledger.queue.renew(stale)
    assert ledger.queue.renew(current)
    before = everything(ledger)
    with pytest.raises(ClaimLost):
        do(ledger, plan, stale)
    assert everything(ledger) == before
    do(ledger, plan, current)


def test_an_overdue_task_gets_one_backup_and_the_first_to_commit_counts(ledger, plan):
    quick = do_until(ledger, plan, "train")
    slow = ledger.queue.claim("slow")
    assert (slow.task.kind, slow.task.arm) == (quick.task.kind, quick.task.arm)
    do(ledger, plan, quick)  # says what is usual
    assert ledger.queue.claim_backup("other", factor=1e9) is None
    assert ledger.queue.claim_backup("slow", factor=0.0) is None
    backup = ledger.queue.claim_backup("other", factor=0.0)
    assert (backup.task, backup.attempt) == (slow.task, slow.attempt + 1)
    assert ledger.queue.claim_backup("third", factor=0.0) is None
    assert ledger.queue.is_held(slow)
    do(ledger, plan, backup)
    with pytest.raises(ClaimLost):
        do(ledger, plan, slow)


def test_a_task_of_any_kind_that_hangs_is_taken_over(ledger, plan):
    """Its worker lives, and renews its lease. It leaves its own task alone, which may be slow."""
    kinds = set()
    while (hung := ledger.queue.claim("hung", lease_seconds=60.0)) is not None:
        kinds.add(hung.task.kind)
        assert ledger.queue.renew(hung, 60.0, stalled_seconds=599.0)
        assert ledger.reaper.reap("other") == []
        assert ledger.queue.renew(hung, 60.0, stalled_seconds=600.0)
        assert ledger.reaper.reap("hung") == []
        assert ledger.reaper.reap("other") == ["hung"]
        assert not ledger.queue.renew(hung, 60.0, stalled_seconds=615.0)
        (failure,) = ledger.failures.list()
        assert failure.reason == "it made no progress for 600 s"
        again = ledger.queue.claim("other")
        assert again.task == hung.task
        assert ledger.queue.renew(again, 60.0, stalled_seconds=1199.0)
        assert ledger.reaper.reap("third") == [], "a slow one gets twice the time, lest none ends"
        do(ledger, plan, again)
    assert kinds >= {"prepare", "pretrain", "route", "train", "outer", "score", "evaluate"}
    assert ledger.queue.is_finished()


def test_leases_are_not_counted_by_the_wall_clock(monkeypatch):
    before, hours = clock.now_seconds(), 26 * 3600.0
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + hours)
    assert clock.now_seconds() - before < hours / 2
    assert clock.now_seconds() < now / 2, "it counts from the start of this machine"


def test_a_task_gets_no_backup_while_an_earlier_phase_of_its_path_is_trained_again(ledger, plan):
    """What the second worker lacks is being made: else it would ask for it again and again."""
    slow = do_until(ledger, plan, Task("train", "modular", "0", 1), "slow")
    backup = ledger.queue.claim_backup("other", factor=0.0)
    assert backup.task == slow.task
    cause = Task("train", "modular", "0", 0)
    ledger.redos.redo(backup, cause, "a snapshot", "it is missing")
    assert ledger.queue.is_held(slow), "its worker may have the snapshot"
    assert ledger.queue.claim_backup("other", factor=0.0) is None
    do(ledger, plan, do_until(ledger, plan, cause, "other", ["train"]))
    assert ledger.queue.claim_backup("other", factor=0.0).task == slow.task


def test_a_task_that_is_late_is_found_among_those_that_may_be(ledger, plan):
    """Only those held for as long as the quickest phase are asked for; the median decides."""
    quick = do_until(ledger, plan, "train")
    slow = ledger.queue.claim("slow", ["train"])
    row = [
        dataclasses.replace(fact, seconds=10.0) if isinstance(fact, PathTrained) else fact
        for fact in facts_of(plan, quick.task)
    ]
    ledger.commit.finish(plan, quick, row)
    held = slow._replace(since=slow.since - 25.0)
    assert ledger.queue.renew(held)
    assert ledger.queue.claim_backup("other", factor=3.0) is None
    assert ledger.queue.renew(slow._replace(since=slow.since - 35.0))
    assert ledger.queue.claim_backup("slow", factor=3.0) is None
    assert ledger.queue.claim_backup("other", factor=3.0).task == slow.task
    assert ledger.queue.claim_backup("third", factor=3.0) is None
