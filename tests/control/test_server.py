"""A database server that is killed (SIGKILL) while its clients work, and one whose wall clock
jumps: what was recorded is there, what was begun is not, and the clients go on.
"""

import shutil
import tempfile
import time
from pathlib import Path

import pytest
from support import wall_clock
from support.servers import fresh_schemas

from dipaco.control.facts import commit as commit_file
from dipaco.control.ledger import open_ledger
from tests.control.conftest import do, do_all, do_one, do_until, everything
from tests.support.own_postgresql import own_postgresql

pytestmark = pytest.mark.process


def test_a_server_that_is_killed_inside_a_commit_loses_nothing_and_the_commit_is_done_once(
    plan, monkeypatch
):
    record, killed = commit_file.record, []

    def dies(database, fact):
        record(database, fact)
        if not killed:
            killed.append(server.process_id)
            server.kill()
            server.start()

    with (
        own_postgresql() as server,
        open_ledger(server.url, next(fresh_schemas)) as ledger,
    ):
        ledger.start({"config": "{}"})
        claim = do_until(ledger, plan, "outer")
        ledger.meta.remember("when", "now")  # flushes the claim, which may be lost otherwise
        before = everything(ledger)
        monkeypatch.setattr(commit_file, "record", dies)
        do(ledger, plan, claim)
        assert killed
        assert server.process_id not in killed
        after = everything(ledger)
        for name in ("meta", "stages", "trained", "contributions", "scores", "releases"):
            assert after[name] == before[name]
        assert len(after["modules"]) == len(before["modules"]) + 1
        do_all(ledger, plan)
        states = ledger.queue.task_counts().values()
        assert sum(state["done"] for state in states) == 40


@pytest.fixture
def clock(tmp_path):
    """The wall clock of a server."""
    library = wall_clock.build(tmp_path)
    if library is None:
        pytest.skip("there is no C compiler here, and no clock that jumps")
    with tempfile.TemporaryDirectory() as folder:  # the server is another user
        for file in (Path(folder), Path(shutil.copy(library, folder))):
            file.chmod(0o755)
        clock = wall_clock.WallClock(Path(folder) / library.name, Path(folder) / "clock")
        (Path(folder) / "clock").chmod(0o666)
        yield clock


@pytest.mark.parametrize("hours", [-26, 26])
def test_a_server_whose_wall_clock_jumps_ends_no_live_lease_and_keeps_no_dead_one(
    plan, clock, hours
):
    lease = {"lease_seconds": 0.5}
    with own_postgresql(variables=clock.environment) as server:
        place = server.url, next(fresh_schemas)
        with open_ledger(*place) as ledger:
            ledger.start({"config": "{}"})
            for _ in range(4):
                do_one(ledger, plan)
            dead, live = (ledger.queue.claim(name, **lease) for name in ("dead", "live"))
            clock.jump(hours * 3600)
            ask = "SELECT extract(epoch FROM clock_timestamp())::double precision"
            ((says,),) = ledger._database._connection.execute(ask).fetchall()
            assert says - time.time() == pytest.approx(hours * 3600, abs=300)
            deadline, looks = time.monotonic() + 30, 0
            while ledger.queue.is_held(dead) or looks < 8:
                assert time.monotonic() < deadline
                assert "live" not in ledger.reaper.reap()
                assert ledger.queue.renew(live, **lease)
                looks += 1
                time.sleep(0.1)
            assert ledger.queue.is_held(live)
            assert clock.wrong_readings
