"""A worker obeys the run's command while it waits."""

from dipaco.workers.callbacks import NullCallbacks
from tests.workers.conftest import CONFIG, worker_of


class Told(NullCallbacks):
    def __init__(self):
        self.pauses = 0

    def paused(self):
        self.pauses += 1


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
