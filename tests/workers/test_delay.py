"""Paths that go ahead while their modules step (`outer.delay`), through tasks, ledger and store:
bit for bit what `algorithm/variants.py` says, in any order in which paths come, leave and die.
"""

import functools
import itertools

import pytest

from dipaco.config import MODULAR
from dipaco.control.planning.tasks import Task
from dipaco.workers import late_modules, replay
from dipaco.workers.callbacks import Callbacks
from dipaco.workers.claiming import waits_for_modules
from dipaco.workers.errors import Preempted
from dipaco.workers.execution import execute
from dipaco.workers.rollback import roll_back
from tests.workers.conftest import CONFIG, changed, digests_of, finish, never, work_while, worker_of
from tests.workers.test_recovery import flip

STEPS, DELAY = 3, 1
DELAYED = changed(CONFIG, inner={"steps": STEPS}, outer={"delay": DELAY, "delay_merge": 0.5})


@pytest.fixture
def at_the_merge(begin):
    """A run where path 1 is to begin phase 1, and nothing else is ready: path 0, which shares a
    module with it, has not finished the phase before. Its worker, `slow`, is at it; others hold
    paths 2 and 3. -> (run, claim of `slow`, claims of the others)
    """
    run = begin(DELAYED, until=0)
    worker, slow = worker_of(run, "first"), None
    while len(run.ledger.facts.trained(MODULAR, 0)) < 3:
        claim = run.ledger.queue.claim("first")
        if (claim.task.kind, claim.task.arm, claim.task.path) == ("train", MODULAR, 0):
            slow = claim
        else:
            worker._finish(claim, execute(run, claim, Callbacks(), never))
    while (claim := run.ledger.queue.claim("first", ["outer"])) is not None:
        worker._finish(claim, execute(run, claim, Callbacks(), never))
    first, *others = (run.ledger.queue.claim(f"other {n}") for n in range(3))
    assert [each.task.path for each in (first, *others)] == [1, 2, 3]
    assert run.ledger.queue.claim("another") is None
    run.ledger.queue.give_back(first)
    return run, slow, others


WAITING = Task("train", MODULAR, "1", 1)


def state_of(run, task):
    states = {each.task: each.state for each in run.ledger.queue.unfinished()}
    return states.get(task, "done")


def test_a_worker_waits_for_its_modules_while_there_is_nothing_else_to_do(
    at_the_merge, monkeypatch
):
    run, slow, others = at_the_merge
    looks, waited, watchers = [], [], []

    def meanwhile(seconds):
        """The slow path comes in while the worker sleeps."""
        looks.append(seconds)
        waited.append(worker._renewer._waited_seconds)
        worker._claimer._silent_workers.make_due()
        if len(looks) == 3:
            worker_of(run, "first")._finish(slow, execute(run, slow, Callbacks(), never))
            for _ in range(2):
                step = run.ledger.queue.claim("third", ["outer"])
                worker_of(run, "third")._finish(step, execute(run, step, Callbacks(), never))

    monkeypatch.setattr(late_modules.time, "sleep", meanwhile)
    monkeypatch.setattr(run.ledger.reaper, "reap", watchers.append)
    worker = worker_of(run, "waits")
    assert worker.run_once()
    assert len(looks) == 3
    assert watchers == ["waits"] * 3, "it looks at a few others, not at all"
    assert waited[0] == 0.0 < waited[1] < waited[2], "or it would be late when it goes on"
    assert state_of(run, WAITING) == "done"
    for claim in others:
        run.ledger.queue.give_back(claim)
    finish(run)
    assert replay.differences(run) == []


def test_a_worker_leaves_for_another_task_and_the_modules_call_the_path_back(
    at_the_merge, monkeypatch
):
    run, slow, others = at_the_merge

    def killed(seconds):
        """The slow path's worker is found dead."""
        run.ledger.queue.give_back(slow)

    monkeypatch.setattr(late_modules.time, "sleep", killed)
    worker = worker_of(run, "waits")
    assert worker.run_once()
    assert state_of(run, WAITING) == "waiting"
    assert run.ledger.facts.partial_snapshot(MODULAR, 1, 1).step == STEPS + DELAY
    assert worker.run_once(), "the path that it left for"
    assert state_of(run, slow.task) == "done"
    work_while(lambda: state_of(run, WAITING) == "waiting", worker)  # the outer steps
    assert state_of(run, WAITING) == "ready"
    for claim in others:
        run.ledger.queue.give_back(claim)
    finish(run)
    assert replay.differences(run) == []


def test_modules_that_come_while_a_worker_leaves_are_not_missed(at_the_merge):
    """It has decided to leave, and the last module is recorded before its snapshot is."""
    run, slow, _ = at_the_merge
    claim, worker = run.ledger.queue.claim("waits"), worker_of(run, "waits")
    with pytest.raises(Preempted) as stopped:
        execute(run, claim, Callbacks(), never)
    worker._finish(slow, execute(run, slow, Callbacks(), never))
    while (step := run.ledger.queue.claim("third", ["outer"])) is not None:
        worker._finish(step, execute(run, step, Callbacks(), never))
    worker._release(claim, stopped.value.partial_snapshot)
    assert state_of(run, claim.task) == "ready"


def test_a_path_that_waits_is_not_late_and_the_one_it_waits_for_is(at_the_merge):
    run, slow, others = at_the_merge
    assert run.ledger.queue.claim("waits").task == WAITING
    waits, backups = functools.partial(waits_for_modules, run), []
    for _ in range(4):
        backup = run.ledger.queue.claim_backup("idle", factor=0.0, is_waiting=waits)
        backups.append(backup and backup.task)
    # Path 2 waits as well; path 3 has all its modules.
    assert backups == [slow.task, others[1].task, None, None]
    assert run.ledger.queue.claim_backup("idle", factor=0.0) is not None


def test_a_path_killed_after_its_merge_or_stopped_before_the_next_step_ends_the_same(
    begin, undisturbed_of
):
    run = begin(DELAYED)
    queue, worker, stops = run.ledger.queue, worker_of(run, "kills"), itertools.cycle(range(5))
    for _ in range(200):
        claim = queue.claim("kills")
        if claim is None:
            break
        asked, last = itertools.count(), next(stops)
        is_over = (lambda a=asked, n=last: next(a) >= n) if claim.task.kind == "train" else never
        try:
            facts = execute(run, claim, Callbacks(), is_over)
        except Preempted as stopped:
            if last % 2:
                worker._release(claim, stopped.partial_snapshot)
            else:  # as if it had been killed: nothing was recorded
                queue.give_back(claim)
        else:
            worker._finish(claim, facts)
    assert not queue.unfinished()
    assert (digests_of(run), run.ledger.progress.losses(MODULAR)) == undisturbed_of(DELAYED)


def test_it_goes_back_and_mends_what_was_damaged(begin):
    run = begin(changed(DELAYED, retention={"snapshots": None}))
    finish(run)
    before = digests_of(run)
    roll_back(run, 1)
    snapshot = run.ledger.facts.snapshot(MODULAR, 0, 0).receipt
    for file in (run.layout.root / snapshot.name).rglob("*"):
        if file.is_file():
            flip(file)
    callbacks = finish(run)
    assert digests_of(run) == before
    assert callbacks.redos, "the snapshot with the path's own parameters was made again"


def test_a_task_in_its_retry_pause_is_no_reason_for_a_waiting_path_to_leave(begin):
    run = begin(DELAYED, until=0)
    queue, worker = run.ledger.queue, worker_of(run, "waits")
    while (claim := queue.claim("other")) is not None:
        last = claim
    run.ledger.failures.fail(last, "why")
    run.ledger._database.change("put_delay", task_id=last.task_id, wait_seconds=600.0)
    assert {failure.state for failure in run.ledger.failures.list()} == {"delayed"}
    assert not worker._claimer.has_others()
    run.ledger._database.change("put_delay", task_id=last.task_id, wait_seconds=0.0)
    assert worker._claimer.has_others()
