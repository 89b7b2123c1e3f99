"""The heartbeat: claims are renewed while a task computes, and a refusal is noticed."""

import threading
from types import SimpleNamespace

import pytest

from dipaco import stopping
from dipaco.control.members.meta import RunCommand
from dipaco.control.planning.tasks import Claim, Task
from dipaco.errors import DiskFull, RunBusy
from dipaco.workers.errors import LeaseNotRenewed
from dipaco.workers.heartbeat import LeaseRenewer

CLAIM = Claim(Task("train", "modular", "3", 1), 7, 2, "w")
DEADLINE_SECONDS = 30.0


class Queue:
    """Remembers which claims are renewed, and how often."""

    def __init__(self, answer):
        self.answer, self.renewed, self.looks, self.three = answer, [], 0, threading.Event()
        self.problems = []  # raised first, one a heartbeat

    def renew(self, claim, lease_seconds, stalled_seconds):
        self.stalled_seconds = stalled_seconds
        if self.problems:
            raise self.problems.pop()
        self.renewed.append((claim, lease_seconds))
        if len(self.renewed) == 3:
            self.three.set()
        return self.answer

    def reap(self, watcher):
        self.looks += 1
        return []


@pytest.fixture
def beating():
    """`beating(answer)`: a renewer of very short leases at work, and the queue that it asks."""
    entered = []

    def begin(answer, *problems, lease_seconds=0.02):
        queue = Queue(answer)
        queue.problems.extend(problems)
        ledger = SimpleNamespace(
            queue=queue,
            reaper=queue,
            members=SimpleNamespace(heartbeat=lambda name, process_id: True),
            meta=SimpleNamespace(command=lambda: RunCommand("run", None)),
            swarms=SimpleNamespace(wants=lambda arm, path, worker: False),
            close=lambda: None,
        )
        renewer = LeaseRenewer(lambda: ledger, "w", lease_seconds)
        entered.append(renewer)
        return renewer.__enter__(), queue

    yield begin
    for renewer in entered:
        renewer.__exit__(None, None, None)


def test_a_claim_is_renewed_again_and_again_while_it_is_held(beating):
    renewer, queue = beating(True)
    renewer.hold(CLAIM)
    assert queue.three.wait(DEADLINE_SECONDS), "nobody renews"
    assert set(queue.renewed) == {(CLAIM, 0.02)}
    assert queue.looks >= 2, "who computes looks for leases that ran out, too"
    assert not renewer.has_lost


def test_a_task_that_waited_for_others_was_held_for_less_long():
    renewer, queue = LeaseRenewer(refuse, "w", 60.0), Queue(True)
    for waits in ((2.0, 3.0), ()):
        renewer.hold(CLAIM)
        for seconds in waits:
            renewer.note_wait(seconds)
        renewer._renew_claim(SimpleNamespace(queue=queue))
    later = CLAIM._replace(since=CLAIM.since + 5.0)
    assert queue.renewed == [(later, 60.0), (CLAIM, 60.0)]


def test_a_renewal_says_for_how_long_the_task_made_no_progress(monkeypatch):
    """The thread that renews lives as long as the process, whatever its task hangs in."""
    now = [0.0]
    monkeypatch.setattr("dipaco.control.clock.now_seconds", lambda: now[0])
    renewer, queue = LeaseRenewer(refuse, "w", 60.0), Queue(True)
    renewer.hold(CLAIM)

    def after(seconds):
        now[0] += seconds
        renewer._renew_claim(SimpleNamespace(queue=queue))
        return queue.stalled_seconds

    assert [after(15.0) for _ in range(3)] == [0.0, 15.0, 30.0]
    stopping.note_progress()
    assert [after(15.0) for _ in range(2)] == [0.0, 15.0]
    assert after(7200.0) == 315.0, "the machine slept"
    renewer.hold(CLAIM)
    assert after(15.0) == 0.0, "another task"


def test_a_claim_whose_renewal_is_refused_is_lost(beating):
    renewer, queue = beating(False)
    renewer.hold(CLAIM)
    assert queue.three.wait(DEADLINE_SECONDS), "nobody renews"
    assert renewer.has_lost


@pytest.mark.parametrize(
    "problem", [DiskFull(file="ledger.sqlite"), ConnectionError("too many clients"), ValueError()]
)
def test_heartbeats_go_on_after_one_that_failed(beating, problem):
    renewer, queue = beating(True, problem, problem)
    renewer.hold(CLAIM)
    assert queue.three.wait(DEADLINE_SECONDS), "the thread ended with the error"
    assert queue.problems == []
    assert not renewer.has_lost


def test_a_worker_whose_heartbeats_fail_renews_by_itself_and_says_so(clock, caplog):
    renewer, queue = LeaseRenewer(refuse, "w", 60.0), Queue(True)
    ledger = SimpleNamespace(queue=queue)
    renewer.hold(CLAIM)
    for seconds, renewals in ((0.0, 0), (44.0, 0), (2.0, 1), (2.0, 1), (44.0, 2)):
        clock[0] += seconds
        renewer.renew_if_silent(ledger)
        assert len(queue.renewed) == renewals
    assert "No lease was renewed for 46 s" in caplog.text


@pytest.mark.parametrize(
    ("problem", "raised"),
    [(DiskFull(file="ledger.sqlite"), DiskFull), (RunBusy(folder="run"), LeaseNotRenewed)],
)
def test_a_worker_that_cannot_renew_at_all_gives_the_task_up(clock, problem, raised):
    renewer, queue = LeaseRenewer(refuse, "w", 60.0), Queue(True)
    queue.problems.append(problem)
    renewer.hold(CLAIM)
    clock[0] += 61.0
    with pytest.raises(raised):
        renewer.renew_if_silent(SimpleNamespace(queue=queue))


def refuse():
    raise ConnectionError("too many clients")


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("dipaco.workers.heartbeat.time.monotonic", lambda: now[0])
    return now
