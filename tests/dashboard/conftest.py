"""The tiny run and its recording; a run with faults; a dashboard behind a real socket."""

import contextlib
import threading
from collections.abc import Iterator

import pytest

from dipaco.control.facts.facts import PartialSnapshot
from dipaco.dashboard.reader import Reader
from dipaco.dashboard.recording import recording_of, state_of
from dipaco.receipt import Receipt
from dipaco.runs.opening import reading
from tests.support.members import join, process_of

HOST = "<b>host</b>"  # a run may call anything anything


@pytest.fixture(scope="session")
def recording(tiny) -> dict:
    """Of the tiny run, as Python values."""
    with reading(tiny.folder) as run:
        reader = Reader(run)
        reader.read()
        return recording_of(reader, state_of(reader))


@pytest.fixture
def faulty(half, copy_of):
    """A run on which every fault that a history knows has been seen; and its folder."""
    copy = copy_of(half)
    with reading(copy.folder) as run:
        ledger = run.ledger
        for name in ("one", "two", "three"):
            join(ledger, name, host=HOST)
        ledger.queue.give_back_all()
        claim = ledger.queue.claim("one", ("train", "outer"))
        ledger.failures.fail(claim, "OSError: <script>alert(1)</script>")
        with ledger._database.transaction():
            ledger._database.change("forget failures", task_id=claim.task_id)
            ledger._database._connection.execute(
                "UPDATE tasks SET state = 'ready' WHERE state = 'delayed'"
            )
        claim = ledger.queue.claim("two", ("train", "outer"))
        ledger.queue.give_back_of("two", crash="killed by signal 9")
        claim = ledger.queue.claim("three", ("train",))
        if claim is not None:
            snapshot = PartialSnapshot(Receipt("o", "d", 1), 4, "rows", (2.0,), 1.0)
            ledger.commit.release_with_snapshot(claim, snapshot)
        claim = ledger.queue.claim("three", ("train", "outer"))
        for silence in (ledger.reaper._claims_seen, ledger.reaper._workers_seen):
            silence.over = list
        ledger.reaper.reap()
        claim = ledger.queue.claim("one", ("outer",))
        sent = ledger.facts.contributions(claim.task.arm, claim.task.module, claim.task.phase)
        ledger.redos.refuse(claim, sent[0], "its norm is too large")
        ledger.members.leave("one", process_of("one"), "asked to stop")
        ledger.meta.set_command("drain")
    return copy


@contextlib.contextmanager
def served(address, pace=None, keys=()) -> Iterator[tuple]:
    """(URL, watcher) of a dashboard of a run, or of a `SweepLayout`."""
    import uvicorn

    from dipaco.dashboard.server import make_app
    from dipaco.dashboard.sweep import SweepWatcher
    from dipaco.dashboard.watcher import Watcher
    from dipaco.serving.http.server import http_config, listen
    from dipaco.store.address import Address
    from dipaco.store.layout import SweepLayout

    is_sweep = isinstance(address, SweepLayout)
    watcher = SweepWatcher(address) if is_sweep else Watcher(Address.of(address), pace)
    watcher.start()
    with listen("127.0.0.1", 0) as listening:
        server = uvicorn.Server(http_config(make_app(watcher, keys)))
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/", watcher
        finally:
            watcher.stop()
            server.force_exit = server.should_exit = True
            thread.join()
