"""Bytes per machine: report, dashboard, status and plan say the same of a run, and the network
interfaces of its machines have carried so many.
"""

import concurrent.futures
import contextlib
import dataclasses
import multiprocessing
import time

import pytest
from support.sites import SERVERS, site, why_no_site

from dipaco.config import MODULAR, EvaluationSettings
from dipaco.control.planning.tasks import PRIORITY
from dipaco.dashboard.reader import Reader
from dipaco.dashboard.recording import state_of
from dipaco.runs.forecast.forecast import forecast
from dipaco.runs.opening import create_or_open
from dipaco.runs.reading.report import make_report
from dipaco.runs.reading.status import status_of
from dipaco.store.address import Address
from dipaco.topology import SHARED, Level, Topology
from tests.support.tiny_run import TOY

HOSTS = ("ana", "bo")  # a machine for each path
OF_HOSTS = ("pretrain", "train", "outer")  # what the count is of. The servers' host does the rest.
# A path of 0.4 M parameters, so that modules are more bytes than questions to the database.
CONFIG = dataclasses.replace(
    TOY,
    model=dataclasses.replace(TOY.model, d_model=128, d_ff=256),
    topology=Topology(
        levels=(
            Level(name="early", parts=("embed", "block_00"), experts=SHARED),
            Level(name="late", parts=("block_01", "final_norm", "head"), experts=2),
        )
    ),
    phases=4,
    baselines=(),
    evaluation=EvaluationSettings(batch_size=16, best_path=False, ensembles=False),
)
SECONDS = 400.0


@contextlib.contextmanager
def finished(at):
    """The run, trained by the hosts and open at its servers."""
    address = Address.parse(f"{at.bucket}/run")
    run, _ = create_or_open(address, CONFIG, None, at.database.url)
    words = ["worker", "--run", str(address), "--database", at.database.url]
    of_servers = [kind for kind in PRIORITY if kind not in OF_HOSTS]
    kinds = {SERVERS: of_servers} | {name: list(OF_HOSTS) for name in HOSTS}
    processes = {
        name: at.start(name, [*words, "--name", name], {"kinds": of_name})
        for name, of_name in kinds.items()
    }
    try:
        deadline = time.monotonic() + SECONDS
        while not run.ledger.queue.is_finished():
            ended = [name for name, process in processes.items() if process.poll()]
            said = [(at.folder / name / f"{name}.log").read_text()[-2000:] for name in ended]
            assert not ended, said
            assert time.monotonic() < deadline, run.ledger.queue.unfinished()
            time.sleep(0.2)
        yield run
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
        run.ledger.close()


@pytest.mark.cluster
@pytest.mark.timeout(600)  # a whole run, on a machine that may be busy
@pytest.mark.slow
def test_all_that_tell_the_bytes_of_a_machine_tell_what_its_interface_has_carried(tmp_path):
    """Within 15 %: which machine steps a module is chance, AdamW's moments are compressed, and
    questions to the database come on top.
    """
    if (problem := why_no_site()) is not None:
        pytest.skip(problem)
    spawned = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, spawned) as apart:
        carried, row, state, status = apart.submit(measured, tmp_path).result()
    planned = forecast(CONFIG).run_bytes
    assert row.bytes_per_machine == planned
    assert state["curves"][MODULAR][-1]["bytes"] == planned
    assert status == {"until_now": planned, "of_the_run": planned}
    assert carried / len(HOSTS) == pytest.approx(planned, rel=0.15)


def measured(folder):
    """(bytes carried, and what report, dashboard and status say of them). In a process of its own,
    since TensorStore's threads stay on the servers' host.
    """
    with site(HOSTS, folder, megabits=200.0) as at:
        before = [at.host(name).link.carried for name in HOSTS]
        with finished(at) as run:
            after = [at.host(name).link.carried for name in HOSTS]
            (row, *_) = (row for row in make_report(run).rows if row.name == MODULAR)
            reader = Reader(run)
            reader.read()
            state = state_of(reader)
            status = status_of(run)["bytes_per_machine"]
    return sum(map(sum, after)) - sum(map(sum, before)), row, state, status
