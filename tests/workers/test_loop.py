"""A worker obeys the run's command while it waits, takes over what others left, and stops when its
task is lost.
"""

import time
from collections import Counter
from queue import Empty

import pytest

from dipaco.config import MODULAR
from dipaco.control.claims import silent_workers
from dipaco.control.claims.queue import ALL_KINDS, LEASE_SECONDS
from dipaco.control.claims.silent_workers import ENDED_SECONDS
from dipaco.control.process_id import ProcessId
from dipaco.errors import ClaimLost, RunOfOtherVersion
from dipaco.workers.heartbeat import LeaseRenewer, heartbeat_seconds
from dipaco.workers.loop import GLIMPSE_SECONDS, MAX_WAIT_SECONDS
from tests.support.members import join
from tests.workers.conftest import (
    CONFIG,
    RecordingCallbacks,
    changed,
    work_until_claimed,
    worker_of,
)

LONGER = changed(CONFIG, inner={"steps": 8})


def test_a_paused_worker_says_so_once_and_waits(begin, monkeypatch):
    run = begin(CONFIG)
    run.ledger.meta.set_command("pause")
    told, looks, summary = RecordingCallbacks(), [], run.ledger.meta.work_summary
    worker = worker_of(run, callbacks=told)
    worker._claimer._idle_since -= 3600.0

    def look(kinds):
        looks.append(None)
        if len(looks) == 5:
            worker.stop()
        return summary(kinds)

    monkeypatch.setattr(run.ledger.meta, "work_summary", look)
    assert not worker.run_until_finished()
    assert (len(looks), told.pauses) == (5, 1)
    assert not run.ledger.queue.held()
    # Else it would take paths that are assigned to others before these are back.
    assert time.monotonic() - worker._claimer._idle_since < 3600.0


def test_a_worker_first_takes_up_what_a_silent_one_left(begin):
    """Though other paths are ready: their modules wait for the path that is behind."""
    run = begin(CONFIG, until=("train", 0))
    task = work_until_claimed(run, "train", 0)
    silent = run.ledger.queue.claim("silent", ("train",))
    assert run.ledger.queue.unfinished_kinds() == {"train"}
    assert (silent.task, len(run.ledger.queue.unfinished())) == (task, 4)
    run.ledger.queue.renew(silent, lease_seconds=-1.0)
    told = RecordingCallbacks()
    assert worker_of(run, callbacks=told).run_once()
    assert told.finished == [silent.task]


def test_a_worker_without_a_task_takes_over_one_that_hangs(begin, monkeypatch):
    """Its holder lives, and its heartbeats go on."""
    monkeypatch.setattr(silent_workers, "LEAST_STALLED_SECONDS", 0.2)
    run, told = begin(CONFIG), RecordingCallbacks()
    with LeaseRenewer(run.open_ledger, "hung", 0.2) as renewer:
        claim = run.ledger.queue.claim("hung", lease_seconds=0.2)
        renewer.hold(claim)
        other = worker_of(run, "other", callbacks=told, lease_seconds=0.2)
        while claim.task not in told.finished:
            other.run_once()
            time.sleep(0.02)
        while not renewer.has_lost:  # It learns so at its next renewal.
            time.sleep(0.02)


def test_a_worker_without_a_task_takes_over_a_late_one(begin, monkeypatch):
    monkeypatch.setattr("dipaco.workers.claiming.OVERDUE_FACTOR", 0.0)  # all are overdue
    run, told = begin(CONFIG), RecordingCallbacks()
    worker = worker_of(run, callbacks=told)
    while not any(task.kind == "train" for task in told.finished):  # says what is usual
        assert worker.run_once()
    slow = [*iter(lambda: run.ledger.queue.claim("slow"), None)]
    assert worker.run_once(), "it left the late ones alone"
    assert told.finished[-1] in [claim.task for claim in slow]


def test_a_run_that_is_upgraded_between_look_and_claim_gets_its_task_back(begin):
    """A worker that was held up between the two is of the old program."""
    run, told = begin(CONFIG), RecordingCallbacks()
    worker = worker_of(run, callbacks=told)
    summary = run.ledger.meta.work_summary(ALL_KINDS)
    run.ledger.meta.pin("0.9.0+another", "run", run.ledger.reaper.end_all)
    with pytest.raises(RunOfOtherVersion):
        worker.run_once(summary)
    assert run.ledger.queue.held() == []
    assert told.finished == []


def test_a_worker_that_has_lost_its_task_stops_at_the_next_step(begin, monkeypatch):
    run = begin(LONGER, until=0)
    monkeypatch.setattr(run.ledger.members, "heartbeat", lambda *of: True)  # it is registered

    def lose():
        run.ledger.queue.give_back_all()
        worker._renewer.renew(run.ledger)

    told = RecordingCallbacks(lose)
    worker = worker_of(run, callbacks=told)
    while not told.steps:
        assert worker.run_once()
    assert told.steps < 8
    assert told.losses
    assert told.losses[0] not in told.finished


def test_a_worker_without_heartbeats_keeps_its_task_by_itself_and_notices_when_it_is_lost(
    begin, monkeypatch
):
    """As when its database takes no more connections: the thread has none."""
    run = begin(LONGER, until=0)
    monkeypatch.setattr("dipaco.workers.heartbeat.SILENT_SHARE", 0.0)  # at every step
    renewals, renew = [], run.ledger.queue.renew
    monkeypatch.setattr(
        run.ledger.queue, "renew", lambda *what: renewals.append(what) or renew(*what)
    )

    def lose():
        if len(renewals) == 4:
            run.ledger.queue.give_back_all()

    told = RecordingCallbacks(lose)
    worker = worker_of(run, callbacks=told)
    while not told.losses:
        assert worker.run_once()
    assert len(renewals) == 5
    assert told.losses[0] not in told.finished


def test_a_worker_that_cannot_record_deletes_nothing(begin, monkeypatch):
    """Another worker goes on from the partial snapshot."""
    run = begin(LONGER, until=0)
    task = work_until_claimed(run, "train", 0)
    stopped = worker_of(run, callbacks=RecordingCallbacks(lambda: stopped.stop()))
    assert stopped.run_once()
    partial_snapshot = run.ledger.facts.partial_snapshot(MODULAR, task.path, task.phase)

    def lost(plan, claim, facts, *, assigns):
        raise ClaimLost(task=claim.task)

    monkeypatch.setattr(run.ledger.commit, "finish", lost)
    told = RecordingCallbacks()
    assert worker_of(run, callbacks=told).run_once()
    assert told.losses == [task]
    assert (run.layout.root / partial_snapshot.receipt.name).is_dir()


class Idle:
    """Stands in for the waits of an idle worker: remembers them, and stops it after `number`."""

    def __init__(self, monkeypatch, run, number):
        self.worker, self.waits, self.number = worker_of(run), [], number
        self.seconds = 1000.0
        self.worker._wake_up = self
        monkeypatch.setattr(time, "monotonic", lambda: self.seconds)

    def get(self, timeout):
        self.waits.append(timeout)
        self.seconds += timeout
        if len(self.waits) == self.number:
            self.worker.stop()
        raise Empty

    def put(self, _):
        pass


@pytest.fixture
def nothing_to_do(begin):
    """A run whose ready tasks all are others'."""
    run = begin(CONFIG, until=0)
    while run.ledger.queue.claim("others") is not None:
        pass
    return run


def test_an_idle_worker_looks_less_and_less_often_and_not_in_step_with_others(
    nothing_to_do, monkeypatch
):
    idle = Idle(monkeypatch, nothing_to_do, 60)
    assert not idle.worker.run_until_finished()
    assert max(idle.waits) <= MAX_WAIT_SECONDS
    assert min(idle.waits[-20:]) >= MAX_WAIT_SECONDS / 2
    assert MAX_WAIT_SECONDS < 2.0, "a new task is claimed within two seconds"
    assert len(set(idle.waits[-20:])) > 10, "all workers would look at once"
    for number, wait in enumerate(idle.waits[10:], start=10):
        assert wait <= 0.6 * sum(idle.waits[:number]), "what came due meanwhile waits too long"


def test_an_idle_worker_asks_little_and_looks_for_overdue_tasks_once_a_lease(
    nothing_to_do, monkeypatch
):
    asked, database = Counter(), nothing_to_do.ledger._database
    ask = database._execute
    monkeypatch.setattr(
        database, "_execute", lambda query, values: asked.update([query]) or ask(query, values)
    )
    idle = Idle(monkeypatch, nothing_to_do, 200)
    assert not idle.worker.run_until_finished()
    seconds = idle.seconds - 1000.0
    late_looks = asked["single_claims"]
    assert seconds / (1.25 * LEASE_SECONDS) <= late_looks <= seconds / (0.75 * LEASE_SECONDS) + 1
    assert late_looks > 3
    often = seconds / (0.75 * heartbeat_seconds(LEASE_SECONDS)) + 1
    assert often / 3 < asked["live_claims"] <= often, "of all claims and workers, once a heartbeat"
    assert sum(asked.values()) < seconds, asked
    assert max(asked.values()) == asked["work_summary"] <= 202, (
        "it asks something twice in one look"
    )
    assert asked["next_task"] <= 1, (
        "it looks for tasks of which the summary says that none is there"
    )


def test_the_task_of_a_worker_that_died_on_this_machine_is_free_after_a_second(
    nothing_to_do, monkeypatch
):
    """An idle worker looks for its process within a wait, and asks the ledger when it has ended."""
    ended = ProcessId.here()._replace(began="1")
    nothing_to_do.ledger.members.join(
        "others", host="here", pid=ended.pid, process_id=str(ended), machine="one", version="0"
    )
    idle = Idle(monkeypatch, nothing_to_do, 200)
    assert not idle.worker._claimer.claim(None)
    idle.worker._wait(5.0, is_paused=True)
    assert idle.seconds == 1005.0, "it may claim nothing, and has nothing to look for"
    idle.seconds = 1000.0
    idle.worker._wait(20.0, is_paused=False)
    assert ENDED_SECONDS <= idle.seconds - 1000.0 <= ENDED_SECONDS + GLIMPSE_SECONDS
    assert idle.worker._claimer.claim(None)


def test_a_worker_hands_its_path_to_volunteers_that_come_and_does_other_tasks(begin):
    run = begin(LONGER, until=0)
    task = work_until_claimed(run, "train", 0)
    path = task.path
    join(run.ledger, "back")
    join(run.ledger, "test", process_id=str(ProcessId.here()))

    def volunteers_come():
        run.ledger.swarms.put_backbone("back", MODULAR, path, "here:1")
        worker._renewer.renew(run.ledger)

    told = RecordingCallbacks(volunteers_come)
    worker = worker_of(run, callbacks=told)
    assert worker.run_once()
    assert told.steps < LONGER.inner.steps
    partial_snapshot = run.ledger.facts.partial_snapshot(MODULAR, path, 0)
    assert partial_snapshot.step == told.steps
    assert run.ledger.queue.claim("back", ("train",)).task == task
    other = run.ledger.queue.claim("plain", ("train",))
    assert other is None or other.task.path != path
