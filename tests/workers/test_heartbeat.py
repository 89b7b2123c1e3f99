"""The heartbeat: claims are renewed while a task computes, and a refusal is noticed."""

import threading
from types import SimpleNamespace

import pytest

from dipaco.control.meta import RunCommand
from dipaco.control.tasks import Claim, Task
from dipaco.workers.heartbeat import LeaseRenewer

CLAIM = Claim(Task("train", "modular", "3", 1), 7, 2, "w")
DEADLINE_SECONDS = 60.0


class Queue:
    """Remembers which claims are renewed, and how often."""

    def __init__(self, answer):
        self.answer, self.renewed, self.three = answer, [], threading.Event()

    def renew(self, claim, lease_seconds):
        self.renewed.append((claim, lease_seconds))
        if len(self.renewed) == 3:
            self.three.set()
        return self.answer

    def reap(self):
        return []


@pytest.fixture
def beating():
    """`beating(answer)`: a renewer of very short leases at work, and the queue that it asks."""
    entered = []

    def begin(answer):
        queue = Queue(answer)
        ledger = SimpleNamespace(
            queue=queue,
            members=SimpleNamespace(heartbeat=lambda name, life: True),
            meta=SimpleNamespace(command=lambda: RunCommand("run", None)),
            close=lambda: None,
        )
        renewer = LeaseRenewer(lambda: ledger, "w", lease_seconds=0.02)
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
    assert not renewer.has_lost(CLAIM)


def test_a_claim_whose_renewal_is_refused_is_lost(beating):
    renewer, queue = beating(False)
    renewer.hold(CLAIM)
    assert queue.three.wait(DEADLINE_SECONDS), "nobody renews"
    assert renewer.has_lost(CLAIM)
