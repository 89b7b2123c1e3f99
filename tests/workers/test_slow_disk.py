"""A disk that takes longer than a lease for what it is given: the worker that waits for it keeps
its task.
"""

import os
import threading
import time

from dipaco.workers.heartbeat import LeaseRenewer
from dipaco.workers.loop import Worker
from dipaco.workers.registration import register
from tests.workers.conftest import CONFIG, RecordingCallbacks, work_until_claimed

LEASE_SECONDS, STALL_SECONDS = 0.8, 1.4


def test_a_worker_whose_disk_is_slower_than_its_lease_keeps_its_task(begin, monkeypatch):
    """It waits once for an object, and once for what it has recorded."""
    run = begin(CONFIG, until=1)
    task = work_until_claimed(run, "train", 1)
    stalls, reaped, is_over = [], [], threading.Event()

    def fsync(file):
        name = os.readlink(f"/proc/self/fd/{file}")
        kind = "ledger" if "ledger.sqlite" in name else "object"
        if kind not in stalls and threading.current_thread() is threading.main_thread():
            stalls.append(kind)
            time.sleep(STALL_SECONDS)

    def look():
        ledger = run.open_ledger()
        while not is_over.wait(0.05):
            reaped.append(ledger.reaper.reap())
        ledger.close()

    other = threading.Thread(target=look)
    other.start()
    callbacks = RecordingCallbacks()
    monkeypatch.setattr(os, "fsync", fsync)
    register(run.ledger.members, "slow", "a machine", print)
    with LeaseRenewer(run.open_ledger, "slow", LEASE_SECONDS) as renewer:
        worker = Worker(run, "slow", callbacks, renewer, lease_seconds=LEASE_SECONDS)
        assert worker.run_once()
    is_over.set()
    other.join()
    assert stalls == ["object", "ledger"]
    assert len(reaped) > 20
    assert not any(reaped), "its lease has ended"
    assert callbacks.losses == []
    assert task not in {each.task for each in run.ledger.queue.unfinished()}
