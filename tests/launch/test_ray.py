"""A run on a Ray cluster that loses a node ends with the facts of an undisturbed run."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from dipaco.launch.devices import FAKE_DEVICES
from dipaco.launch.errors import ClusterWithoutToken, NoCluster
from dipaco.runs.opening import reading
from tests.launch.conftest import is_alive
from tests.support.tiny_run import facts
from tests.support.waiting import until

pytest.importorskip("ray", reason="the extra `ray` is not installed")

from dipaco.launch import ray as ray_engine


@pytest.fixture
def launch(tiny, command_cache, tmp_path):
    """`launch(address, ...)` -> the launcher's process; its run is in `tmp_path / "run"`."""
    processes = []

    def start(address, *more, **environment):
        words = ["launch", tiny.config, "--run", tmp_path / "run", "--engine", "ray"]
        words += ["--address", address, *more]
        with (tmp_path / "launcher.log").open("a") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "dipaco.cli.main", *map(str, words)],
                stdout=log,
                stderr=log,
                env=os.environ | {"DIPACO_CACHE": str(command_cache), **environment},
            )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()


def held_training(folder, launcher):
    """Waits until a worker is training a path, stops it there, and returns its process number."""
    found = []

    def look():
        assert launcher.poll() is None, (folder.parent / "launcher.log").read_text()
        if not (folder / "ledger.sqlite").exists():
            return False
        with reading(folder) as run:
            claims = [h for h in run.ledger.queue.held() if h.task.kind == "train"]
            pids = {member.name: member.pid for member in run.ledger.members.list()}
        for claim in claims:
            os.kill(pids[claim.worker], signal.SIGSTOP)
            with reading(folder) as run:  # is it still what it does?
                if claim.attempt in {h.attempt for h in run.ledger.queue.held()}:
                    found.append(pids[claim.worker])
                    return True
            os.kill(pids[claim.worker], signal.SIGCONT)
        return False

    until(look, 240, "a path is being trained")
    return found[0]


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.parametrize(
    ("shape", "kind", "resources", "environment"),
    [
        ((None, 1, None), "cpu", {"CPU": 1}, {}),
        ((4, 2, None), "cpu", {"CPU": 2}, {"XLA_FLAGS": f"{FAKE_DEVICES}=4"}),
        ((None, 1, None), "gpu", {"CPU": 1, "GPU": 1.0}, {}),
        ((8, 4, None), "gpu", {"CPU": 4, "GPU": 8.0}, {}),
        ((1, 1, 0.25), "gpu", {"CPU": 1, "GPU": 0.25}, {"XLA_CLIENT_MEM_FRACTION": "0.250"}),
        ((4, 1, None), "tpu", {"CPU": 1, "TPU": 4.0}, {}),
    ],
)
def test_the_resources_that_a_worker_takes_from_the_cluster(
    shape, kind, resources, environment, monkeypatch
):
    monkeypatch.delenv("XLA_FLAGS")
    assert ray_engine.WorkerResources(*shape).resources(kind) == resources
    assert ray_engine.WorkerResources(*shape).environment(kind) == environment


def test_the_hosts_of_a_worker_on_tpus_are_those_of_one_slice_in_its_order(monkeypatch):
    def node(name, place, is_alive=True):
        labels = {"ray.io/tpu-slice-name": name, "ray.io/tpu-worker-id": place}
        return {"Alive": is_alive, "NodeManagerAddress": f"{name}-{place}", "Labels": labels}

    large = [node("large", str(place)) for place in range(4)]
    pairs = [node("a", "1"), node("b", "0"), node("a", "0"), node("b", "1"), node("c", "0")]
    lost = node("c", "1", is_alive=False)
    monkeypatch.setattr(ray_engine, "connect", lambda address: None)
    monkeypatch.setattr(ray_engine, "ray", cluster := MagicMock())
    monkeypatch.setattr(ray_engine, "PlacementGroupSchedulingStrategy", MagicMock())
    cluster.nodes.return_value = [*large, *pairs, lost, {**lost, "Alive": True, "Labels": {}}]
    cluster.cluster_resources.return_value = {"TPU": 32.0}
    engine = ray_engine.RayEngine(
        None, ray_engine.WorkerResources(devices=4), "s3://bucket/run", None
    )
    spec = MagicMock(hosts=2, takes_devices=True, environment={})
    for name in ("first", "second"):
        engine.start(spec, name)
    asked = cluster.util.placement_group.call_args_list
    places = [[tuple(m.values()) for m in each[1]["bundle_label_selector"]] for each in asked]
    assert places == [[("a", "0"), ("a", "1")], [("b", "0"), ("b", "1")]]


@pytest.mark.timeout(900)  # as long as the waits in it
def test_a_node_lost_during_a_run_costs_only_time(cluster, launch, tiny, tmp_path):
    """Ray restarts its worker on another node, which takes up the old one's task at once."""
    run = tmp_path / "run"
    launcher = launch(cluster.address, "--workers", 1, "--executors", 1, "--monitor")
    worker = held_training(run, launcher)
    raylet = parent_of(parent_of(worker))
    cluster.tell("lose", raylet)
    cluster.tell("add")
    assert launcher.wait(timeout=240) == 0, (tmp_path / "launcher.log").read_text()
    assert facts(run) == facts(tiny.folder)
    with reading(run) as opened:
        members = opened.ledger.members.list()
    assert len(members) == 2
    assert worker not in {member.pid for member in members}, "it was not started again"

    until(lambda: not is_alive(worker), 240, "the old one is gone")


@pytest.mark.parametrize(
    ("address", "mode", "mentions_token"),
    [
        ("127.0.0.1:{port}", None, True),
        ("127.0.0.1:{port}", "token", False),
        ("local", None, False),
    ],
)
def test_a_refused_connection_mentions_the_token(monkeypatch, address, mode, mentions_token):
    """Ray itself tries for 20 s, and then reports only a failure."""

    def refuse(**_):
        raise ConnectionError("Failed to connect to Ray cluster.")

    monkeypatch.setattr(ray_engine.ray, "init", refuse)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    if mode is not None:
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
    with socket.socket() as head:
        head.bind(("127.0.0.1", 0))
        head.listen()
        with pytest.raises(NoCluster, match="Failed to connect to Ray cluster") as error:
            ray_engine.connect(address.format(port=head.getsockname()[1]))
    assert ("RAY_AUTH_MODE=token" in str(error.value)) == mentions_token


@pytest.mark.parametrize(
    ("address", "mode", "found", "is_refused"),
    [
        (None, None, None, True),
        (None, None, "token", False),  # Ray finds one in ~/.ray, and sets the variable
        (None, "token", None, False),
        (None, "disabled", None, False),
        ("local", None, None, False),
    ],
)
def test_a_cluster_without_a_token_is_refused_unless_that_is_meant(
    monkeypatch, address, mode, found, is_refused
):
    ended = []

    def begin(**_):
        if found is not None:
            monkeypatch.setenv("RAY_AUTH_MODE", found)

    monkeypatch.setattr(ray_engine.ray, "init", begin)
    monkeypatch.setattr(ray_engine.ray, "shutdown", lambda: ended.append("shut down"))
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    if mode is not None:
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
    if is_refused:
        with pytest.raises(ClusterWithoutToken, match="RAY_AUTH_MODE=token"):
            ray_engine.connect(address)
        assert ended == ["shut down"]
    else:
        ray_engine.connect(address)
        assert not ended
