"""A worker obeys the run's command while it waits, takes over what others left, and stops when its
task is lost.
"""

import dataclasses

import pytest

from dipaco.config import MODULAR
from dipaco.errors import ClaimLost
from dipaco.workers.callbacks import NullCallbacks
from tests.workers.conftest import CONFIG, work_until, worker_of
from tests.workers.test_recovery import work_until_claimed


class Told(NullCallbacks):
    """Remembers what it was told; calls `at_step` after each step."""

    def __init__(self, at_step=lambda: None):
        self.pauses, self.steps, self.finished, self.lost = 0, 0, [], []
        self._at_step = at_step

    def paused(self):
        self.pauses += 1

    def step_taken(self, claim, loss, tokens):
        self.steps += 1
        self._at_step()

    def task_finished(self, claim, facts):
        self.finished.append(claim.task)

    def claim_lost(self, claim):
        self.lost.append(claim.task)


def test_a_paused_worker_says_so_once_and_waits(begin, monkeypatch):
    run = begin(CONFIG)
    run.ledger.meta.set_command("pause")
    told, looks, orders = Told(), [], run.ledger.meta.command
    worker = worker_of(run, callbacks=told)

    def look():
        looks.append(None)
        if len(looks) == 5:
            worker.stop()
        return orders()

    monkeypatch.setattr(run.ledger.meta, "command", look)
    assert not worker.run_until_finished()
    assert (len(looks), told.pauses) == (5, 1)
    assert not run.ledger.queue.held()


def test_a_worker_without_a_task_ends_the_lease_of_a_silent_one(begin):
    run = begin(CONFIG)
    silent = run.ledger.queue.claim("silent")
    assert not worker_of(run).run_once()
    run.ledger.queue.renew(silent, lease_seconds=-1.0)
    told = Told()
    assert worker_of(run, callbacks=told).run_once()
    assert told.finished == [silent.task]


def test_a_worker_without_a_task_takes_over_a_late_one(begin, monkeypatch):
    monkeypatch.setattr("dipaco.workers.loop.LATE_FACTOR", 0.0)  # all are late
    run, told = begin(CONFIG), Told()
    worker = worker_of(run, callbacks=told)
    while not any(task.kind == "train" for task in told.finished):  # says what is usual
        assert worker.run_once()
    slow = list(iter(lambda: run.ledger.queue.claim("slow"), None))
    assert worker.run_once(), "it left the late ones alone"
    assert told.finished[-1] in [claim.task for claim in slow]


def test_a_worker_that_has_lost_its_task_stops_at_the_next_step(begin):
    run = begin(dataclasses.replace(CONFIG, inner=dataclasses.replace(CONFIG.inner, steps=8)))
    work_until(run, 0)

    def lose():
        run.ledger.queue.give_back_all()
        worker._renewer.renew(run.ledger)

    told = Told(lose)
    worker = worker_of(run, callbacks=told)
    while not told.steps:
        assert worker.run_once()
    assert told.steps < 8
    assert told.lost
    assert told.lost[0] not in told.finished


def test_a_worker_that_fails_gives_its_task_back(begin, monkeypatch):
    run = begin(CONFIG)

    def fail(*_):
        raise RuntimeError("a defect")

    monkeypatch.setattr("dipaco.workers.loop.execute", fail)
    with pytest.raises(RuntimeError, match="a defect"):
        worker_of(run).run_once()
    assert run.ledger.queue.held() == []
    assert run.ledger.queue.claim("other") is not None


def test_a_worker_that_cannot_record_deletes_nothing(begin, monkeypatch):
    """Another worker goes on from the partial snapshot."""
    run = begin(dataclasses.replace(CONFIG, inner=dataclasses.replace(CONFIG.inner, steps=6)))
    task = work_until_claimed(run, "train", 0)
    stopped = worker_of(run, callbacks=Told(lambda: stopped.stop()))
    assert stopped.run_once()
    partial_snapshot = run.ledger.facts.partial_snapshot(MODULAR, task.path, task.phase)

    def lost(plan, claim, facts):
        raise ClaimLost(task=claim.task)

    monkeypatch.setattr(run.ledger.commit, "finish", lost)
    told = Told()
    assert worker_of(run, callbacks=told).run_once()
    assert told.lost == [task]
    assert (run.layout.root / partial_snapshot.receipt.name).is_dir()
