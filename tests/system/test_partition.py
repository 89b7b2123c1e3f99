"""A worker that is cut off from the database for longer than its lease, as a process on a host of
its own: another does the rest of the run, to the same bits, and the first comes back to nothing.
"""

import signal
import tempfile
from pathlib import Path

import pytest
from support.servers import postgresql

from dipaco.overrides import load_config
from dipaco.runs.opening import create_or_open, database_location_of
from tests.support.tiny_run import Fault, facts, facts_on_server, report
from tests.support.waiting import until


@pytest.mark.slow
def test_a_worker_that_is_cut_off_in_a_run_comes_back_to_nothing(dipaco, tiny, hosts, tmp_path):
    """The network fails as it is about to record what it has trained."""
    at, run = hosts("server", "ana", "bo"), tmp_path / "run"
    link = at["ana"].link
    with (
        tempfile.TemporaryDirectory(prefix="dipaco-postgresql-") as folder,
        postgresql(Path(folder) / "server", at["server"]) as server,
    ):
        if server is None:
            pytest.skip("no PostgreSQL here: install it, or `pip install -e '.[test-all]'`")
        with at["server"].entered():
            opened, _ = create_or_open(run, load_config(tiny.config), database=server.url)
            opened.ledger.close()
        stops = Fault("before record", "train", nth=3, number=signal.SIGSTOP)

        def start(name, fault=None):
            words = ("worker", "--run", run, "--name", name, "--lease-seconds", 2)
            return dipaco.start(*words, fault=fault, network=at[name].network)

        cut_off = start("ana", stops)
        until(lambda: cut_off.has_fired and cut_off.state == "T", 120.0)
        link.swallow()
        cut_off.signal(signal.SIGCONT)
        ended = start("bo").wait()
        assert ended.code == 0, ended.err
        assert link.lost_packets > 0
        link.restore()
        back = cut_off.wait()
        assert back.code == 0, back.err
        assert "was given to another worker: its work here is discarded" in back.err
        with at["server"].entered():
            assert facts_on_server(*database_location_of(run)) == facts(tiny.folder)
        assert report(run) == report(tiny.folder)
