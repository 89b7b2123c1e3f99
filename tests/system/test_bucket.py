"""A run in a bucket and on a database server, by machines that share nothing else: to the same
bits.
"""

import json
import os
import signal
from pathlib import Path

import pytest

from dipaco.control.database.location import location_of
from dipaco.control.ledger import open_ledger
from dipaco.store.remote import Remote
from tests.support.tiny_run import Fault, facts, facts_on_server

FAULTS = ("500", "503", "reset", "garbage", "cut", "after", "slow")


@pytest.fixture
def machine(dipaco, command_cache, bucket, tmp_path):
    """`machine("a")(...)` runs a command on a machine of that name: a cache folder of its own, and
    compiled programs as if it had been compiled there.
    """

    def of(name):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        if not (folder / "compiled").exists():
            (folder / "compiled").symlink_to(command_cache / "compiled")
        names = ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
        environment = {name: os.environ[name] for name in names}
        environment |= {"DIPACO_CACHE": str(folder), "DIPACO_CACHE_GIGABYTES": "0.001"}
        return lambda *arguments, **more: dipaco(*arguments, environment=environment, **more)

    return of


def test_three_machines_that_share_no_folder_do_the_run_to_the_same_bits(
    machine, tiny, bucket, postgresql_server, tmp_path
):
    """Each takes over where the one before was asked to leave: in the middle of a phase, and
    between contributions and outer steps. Every nineteenth answer of the store is a fault.
    """
    run, database = f"{bucket.url}/runs/tiny", postgresql_server.url
    bucket.proxy.slow_seconds = 0.05
    bucket.proxy.fail_every(19, *FAULTS)

    leave = Fault("inside steps", "train", nth=8, number=signal.SIGTERM)
    first = machine("a")("train", tiny.config, "--run", run, "--database", database, fault=leave)
    assert (first.code, first.fired) == (0, "inside steps train"), first.err
    assert "Stopped" in first.out

    leave = Fault("after claim", "outer", nth=2, number=signal.SIGTERM)
    second = machine("b")("worker", "--run", run, fault=leave)
    assert (second.code, second.fired) == (0, "after claim outer"), second.err

    third = machine("c")("train", tiny.config, "--run", run)
    assert third.code == 0, third.err
    assert f"Written: {run}/report.md" in third.out
    assert set(bucket.proxy.injected) == set(FAULTS)

    marker = json.loads(Remote(run).read("database"))
    assert marker["database"] == database
    place = location_of(Path(), **marker)
    assert facts_on_server(*place) == facts(tiny.folder)

    for each in "abc":  # no machine kept what only a shared folder could have held
        (folder,) = (tmp_path / each / "runs").iterdir()
        assert not (folder / "ledger.sqlite").exists()
    left = Remote(run)
    assert json.loads(left.read("report.json"))["rows"]
    with open_ledger(*place) as ledger:
        assert ledger.retention.live_names(snapshots=2, contributions=9, but="base") == {
            *left.names("objects/messages"),
            *("/".join(name.split("/")[:4]) for name in left.names("snapshots")),
        }
