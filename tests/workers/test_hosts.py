"""Hosts of one worker: what they broadcast, and that two processes of four devices compute what one
process of eight does, whichever of them is killed.
"""

import contextlib
import dataclasses
import os
import shutil
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import jax
import numpy as np
import pytest
from jax._src.clusters import cloud_tpu_cluster

from dipaco.config import MODULAR
from dipaco.control.planning.tasks import Claim, Task
from dipaco.errors import ClaimLost, SettingsDisagree
from dipaco.launch.devices import fake_cpus
from dipaco.launch.local import LocalEngine
from dipaco.model.config import MeshConfig
from dipaco.runs import programs as programs_file
from dipaco.runs.opening import create_or_open, reading
from dipaco.runs.programs import Programs
from dipaco.store.errors import ObjectDamaged
from dipaco.workers import hosts as hosts_file
from dipaco.workers.errors import BadHosts
from dipaco.workers.hosts import (
    ONE_SLICE,
    HostGroup,
    HostGroupBroken,
    HostOptions,
    decode_claim,
    encode_claim,
    hosts_of_cluster,
    join_hosts,
)
from tests.support.tiny_run import facts
from tests.support.waiting import until
from tests.workers.conftest import CONFIG, changed, work_until, worker_of


class Service:
    """JAX's coordination service, in memory."""

    def __init__(self):
        self.values, self._changed = {}, threading.Condition()

    def key_value_set(self, key, value):
        with self._changed:
            assert key not in self.values
            self.values[key] = value
            self._changed.notify_all()

    def blocking_key_value_get(self, key, timeout_in_ms):
        with self._changed:
            if not self._changed.wait_for(lambda: key in self.values, timeout_in_ms / 1000):
                raise jax.errors.JaxRuntimeError("DEADLINE_EXCEEDED: no such key")
            return self.values[key]

    def key_value_delete(self, key):
        with self._changed:
            del self.values[key]

    def key_value_dir_get(self, folder):
        with self._changed:
            return [pair for pair in self.values.items() if pair[0].startswith(folder)]


@pytest.fixture
def service(monkeypatch):
    monkeypatch.setattr(hosts_file, "WAIT_SECONDS", 0.01)
    monkeypatch.setattr(hosts_file, "POLL_SECONDS", 0.0)
    return Service()


def on_each(service, act, count=3):
    """What `act(host)` returns or raises on every host, in their order."""

    def guarded(index):
        try:
            return act(HostGroup(service, index, count, "secret"))
        except Exception as error:
            return error

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(guarded, range(count)))


def test_all_hosts_read_what_the_first_broadcasts_in_its_order(service):
    def act(host):
        return [host.broadcast(value if host.is_first else None) for value in ("one", [2, 3], None)]

    assert on_each(service, act) == [["one", [2, 3], None]] * 3


def test_the_decision_of_the_first_host_is_that_of_all_and_so_is_its_lost_claim(service):
    def act(host):
        return [host.decided_by_first(decide) for decide in (lambda: True, lambda: False)]

    assert on_each(service, act) == [[True, False]] * 3

    service.values.clear()

    def lost():
        raise ClaimLost(task="test")

    ends = on_each(service, lambda host: host.decided_by_first(lost))
    assert [type(end) for end in ends] == [ClaimLost] * 3


def test_what_ran_on_all_hosts_is_done_and_keys_before_it_are_deleted(service):
    def act(host):
        for number in range(20):
            host.broadcast(number)
        return [host.run_on_all(lambda: host.index, lambda _: "the same") for _ in range(2)]

    assert on_each(service, act) == [[0, 0], [1, 1], [2, 2]]
    assert len(service.values) <= 2 * 3


def test_an_error_of_one_host_is_raised_on_all_and_they_go_on(service):
    def act(host):
        def read():
            if host.index == 1:
                raise ObjectDamaged(file=os.devnull, name="objects/x", problem="it is short")

        with pytest.raises(ObjectDamaged, match="it is short") as met:
            host.run_on_all(read)
        return met.value.values["name"], host.run_on_all(lambda: "next")

    assert on_each(service, act) == [("objects/x", "next")] * 3


def test_hosts_with_different_results_break_the_group(service):
    ends = on_each(service, lambda host: host.run_on_all(lambda: host.index, str))
    assert all(isinstance(end, HostGroupBroken) for end in ends)
    assert "different results: 0, 1, 2" in str(ends[0])


@pytest.mark.parametrize("what", ["task", "signed by another", "replayed at another place"])
def test_what_a_stranger_writes_is_not_done(service, what):
    """JAX's coordination service lets in any program that reaches its port."""
    first, second = HostGroup(service, 0, 2, "secret"), HostGroup(service, 1, 2, "secret")
    if what == "task":
        service.key_value_set("dipaco/broadcast/0", '"delete everything"')
    elif what == "signed by another":
        HostGroup(service, 0, 2, "guessed").broadcast("delete everything")
    else:
        first.broadcast("delete everything")
        second.broadcast()
        service.key_value_set("dipaco/broadcast/1", service.values["dipaco/broadcast/0"])
    with pytest.raises(HostGroupBroken, match="was not written by a host of this worker"):
        second.broadcast()


def test_the_coordinator_listens_at_its_own_address_only(monkeypatch):
    asked = {}
    monkeypatch.setattr(jax.distributed, "initialize", lambda *_, **more: asked.update(more))
    join_hosts(HostOptions(2, 0, "10.0.0.7:1234"), "secret")
    assert asked["coordinator_bind_address"] == "10.0.0.7:1234"
    monkeypatch.setenv("JAX_COORDINATOR_BIND_ADDRESS", "0.0.0.0:1234")
    join_hosts(HostOptions(2, 0, "service.cluster:1234"), "secret")
    assert asked["coordinator_bind_address"] == "0.0.0.0:1234"


def test_a_silent_host_is_waited_for_until_a_timeout(service, monkeypatch):
    monkeypatch.setattr(hosts_file, "TIMEOUT_SECONDS", 0.05)
    with pytest.raises(HostGroupBroken, match="nothing at dipaco/outcome/0/1 for 0 s"):
        HostGroup(service, 0, 2, "secret").run_on_all(lambda: "here")


def test_a_host_that_is_asked_to_stop_lets_the_first_know(service):
    first, second = HostGroup(service, 0, 2, "secret"), HostGroup(service, 1, 2, "secret")
    assert not first.is_stop_requested
    second.request_stop()
    with ThreadPoolExecutor(1) as thread:
        heard = thread.submit(second.broadcast)
        until(lambda: first.is_stop_requested)
        first.broadcast("stop")
        assert heard.result(timeout=60) == "stop"


def test_a_claim_is_decoded_as_it_was_encoded():
    claim = Claim(Task("train", "modular", "2", 5), 17, 3, "ana")
    assert decode_claim(encode_claim(claim)) == claim
    with pytest.raises(HostGroupBroken, match="no task"):
        decode_claim("go")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (HostOptions(0, 0, None), "`--hosts` is 0"),
        (HostOptions(2, 2, "a:1"), "`--host-index` is 2, of 2 hosts"),
        (HostOptions(2, 0, None), "`--coordinator` is None"),
        (HostOptions(2, 0, "here"), "`--coordinator` is here; expected HOST:PORT"),
    ],
)
def test_the_options_of_hosts_are_checked(options, says):
    with pytest.raises(BadHosts, match=says):
        options.check()


STEP = {
    "SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "node[03-04],gpu7", "SLURM_STEP_NUM_NODES": "3",
    "SLURM_NTASKS": "3", "SLURM_STEP_NUM_TASKS": "3", "SLURM_PROCID": "1", "SLURM_LOCALID": "0",
}  # fmt: skip
SLICE = {"TPU_WORKER_HOSTNAMES": "localhost,t1.lab", "TPU_WORKER_ID": "1"}
# A set of jobs of GKE, or a queued resource, makes one program of all slices.
SECOND_OF_THREE = dict(zip(ONE_SLICE, ("3", "1", "first.lab"), strict=True))


@pytest.fixture
def cluster(monkeypatch):
    """`cluster(variables)`: what this host finds with these variables of its cluster."""

    def found(variables):
        for name in [*ONE_SLICE, *os.environ]:
            if name.startswith(("SLURM_", "TPU_", "MEGASCALE_")):
                monkeypatch.setenv(name, "")
                monkeypatch.delenv(name)
        monkeypatch.setattr(cloud_tpu_cluster, "running_in_cloud_tpu_vm", "TPU" in str(variables))
        metadata = "get_tpu_env_value_from_metadata"
        monkeypatch.setattr(cloud_tpu_cluster, metadata, variables.get)
        for name, value in variables.items():
            if name not in ONE_SLICE:
                monkeypatch.setenv(name, value)
        return hosts_of_cluster()

    return found


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({}, HostOptions()),
        (STEP, HostOptions(3, 1, "node03:61447")),
        (STEP | {"SLURM_STEP_NUM_TASKS": "1"}, HostOptions()),  # a script that will start steps
        (STEP | {"SLURM_NTASKS": "1", "SLURM_STEP_NUM_NODES": "1"}, HostOptions()),
        (SLICE, HostOptions(2, 1, "localhost:8482")),
        (SLICE | {"TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0"}, HostOptions()),
        (SLICE | SECOND_OF_THREE, HostOptions(2, 1, "localhost:8482")),
    ],
)
def test_hosts_of_a_tpu_slice_or_of_a_step_of_slurm_find_each_other(cluster, variables, found):
    assert cluster(variables) == found


def test_several_tasks_on_a_node_are_told_why_they_are_no_worker(cluster):
    with pytest.raises(BadHosts, match=r"24 tasks on 3 nodes.*--ntasks-per-node=1"):
        cluster(STEP | {"SLURM_NTASKS": "24"})


def test_a_mesh_that_leaves_devices_of_other_hosts_out_is_refused(monkeypatch):
    monkeypatch.setattr(programs_file.jax, "process_count", lambda: 2)
    config = dataclasses.replace(CONFIG, mesh=MeshConfig(data=2))
    with pytest.raises(SettingsDisagree, match="have 8 devices together, and the mesh takes 2"):
        Programs(config)


# --- real processes ---------------------------------------------------------------------------

MESH = changed(
    CONFIG,
    mesh=MeshConfig(data=2, fsdp=2, tensor=2),
    phases=2,
    outer={"delay": 1},
    evaluation={"every_phases": 2},
)


class Pair(NamedTuple):
    """A worker of two hosts, as a step of Slurm starts it on two nodes."""

    run: str
    takes_devices = True
    hosts = 2

    def command(self, name, host, coordinator):
        port = coordinator.rpartition(":")[2]  # JAX derives the coordinator's from the job's number
        step = {"JOB_ID": port, "STEP_NODELIST": "127.0.0.1", "STEP_NUM_NODES": "2", "NTASKS": "2"}
        step |= {"PROCID": str(host), "LOCALID": "0"}
        variables = [f"SLURM_{key}={value}" for key, value in step.items()]
        words = ["worker", "--run", self.run, "--name", name, "--lease-seconds", "4"]
        return ["env", *variables, sys.executable, "-m", "dipaco.cli.main", *words]

    @property
    def environment(self):
        return {}


@pytest.fixture
def pair(tmp_path):
    """An engine whose groups have two processes of four devices each."""
    engine = LocalEngine(lambda name: tmp_path / "logs" / f"{name}.log", lambda _: fake_cpus(4))
    yield engine
    engine.stop(grace_seconds=5)


def logs(folder):
    return "\n".join(f"{f.name}: {f.read_text()[-1500:]}" for f in sorted(folder.glob("*.log")))


@pytest.fixture
def finish(pair, tmp_path):
    """`finish(folder)`: a worker of two hosts, until the run is finished. If one host is so slow
    that the other times out, the worker is started again, as a launcher does.
    """

    def finish(folder):
        for _ in range(5):
            pair.start(Pair(str(folder)), "pair")
            (ended,) = until(pair.poll, 240.0, lambda: logs(tmp_path / "logs"))
            if ended.code == 0:
                return
        raise AssertionError(logs(tmp_path / "logs"))

    return finish


@pytest.mark.timeout(1200)  # it starts eight processes that compile, on machines that may be busy
def test_two_hosts_of_four_devices_do_what_one_of_eight_does_whichever_is_killed(
    corpus, tmp_path, command_cache, pair, finish, monkeypatch
):
    """Killed or not: the same facts, bit for bit. Against one process, whose devices add in another
    order than two hosts do: within a millionth.
    """
    monkeypatch.setenv("DIPACO_CACHE", str(command_cache))
    alone, calm, storm = (tmp_path / name for name in ("alone", "calm", "storm"))
    shutil.copytree(corpus, alone / "corpus")
    run, _ = create_or_open(alone, MESH)
    with contextlib.closing(run.ledger):
        run.programs = Programs(MESH)
        work_until(run, 0)
        for folder in (calm, storm):
            shutil.copytree(alone, folder)
        worker_of(run).run_until_finished()
    finish(calm)
    for victim in (1, 0):
        kill_while_training(pair, storm, victim, tmp_path / "logs")
    finish(storm)

    assert facts(storm) == facts(calm)
    with reading(alone) as there, reading(calm) as here:
        machines = here.ledger.progress.machines()
        assert len(machines) == 2, "the base model was trained by one process"
        for phase in (1, 2):
            for module in MESH.topology.modules:
                ours = jax.tree.leaves(here.parameters(MODULAR, module, phase))
                theirs = jax.tree.leaves(there.parameters(MODULAR, module, phase))
                for one, other in zip(ours, theirs, strict=True):
                    np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)


def kill_while_training(pair, folder, victim, log_folder):
    """One host is killed while the worker trains a path: the other ends, the lease returns."""
    with reading(folder) as run:  # one process that watches: it sees for how long a lease is silent

        def held():
            run.ledger.reaper.reap()
            return [h for h in run.ledger.queue.held() if h.task.kind == "train"]

        pair.start(Pair(str(folder)), "pair")
        processes = pair.processes("pair")
        until(held, 240.0, lambda: logs(log_folder))
        os.kill(processes[victim].pid, signal.SIGKILL)
        (ended,) = until(pair.poll, 240.0, lambda: logs(log_folder))
        assert (ended.name, ended.how) == ("pair", "signal 9")
        assert None not in [process.poll() for process in processes]
        until(lambda: not held(), 240.0, lambda: logs(log_folder))
