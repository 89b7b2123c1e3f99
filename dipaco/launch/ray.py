"""Workers as actors on a Ray cluster. Each actor holds one process.

A worker's actors share a placement group with their GPUs, TPUs or CPUs, each host on its own
machine, or on the machines of one slice of TPUs. While the cluster has no room, Ray keeps them
waiting, and an autoscaling cluster grows. Restarts are divided so:

    a machine or an actor died      Ray, on another machine; the process keeps its name
    the process died                the supervisor, after a wait that doubles each time
    one host of several died        the supervisor, all of them: a `jax.distributed` program cannot
                                    be joined again

A process on a machine that Ray has given up may still be running. Its claim is then lost. When the
launcher dies, Ray ends its actors. When the cluster's head dies, everything ends. Both cost only
time.
"""

import contextlib
import logging
import os
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dipaco.errors import needs_extra
from dipaco.launch.devices import fake_cpus, memory_limit
from dipaco.launch.engine import UNSEEN, Engine, ProcessCommand
from dipaco.launch.errors import ClusterNeedsServer, ClusterWithoutToken, NoCluster
from dipaco.launch.local import LocalProcess, free_port
from dipaco.store.address import Address
from dipaco.store.layout import Layout

with needs_extra("ray", package="ray", feature="`--engine ray`"):
    import ray
    import ray.exceptions
    import ray.util
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

COORDINATOR = "COORDINATOR"  # stands for the address in a command line until it is known
LISTEN_SECONDS = 10.0  # deadline for a connection to the head of a cluster
ASK_SECONDS = 30.0  # deadline for the answer of a running actor
SLICE, PLACE = "ray.io/tpu-slice-name", "ray.io/tpu-worker-id"  # Ray's labels of a TPU's machine
# Ray does not say why a cluster refused a connection.
TOKEN_ADVICE = (
    "the address accepts connections; a cluster with tokens needs RAY_AUTH_MODE=token in the "
    "environment, and its token in ~/.ray/auth_token"
)


class WorkerResources(NamedTuple):
    """Resources that each host of a worker takes from the cluster."""

    devices: int | None = None  # None = one GPU or TPU chip if the cluster has them
    cpus: float = 1
    memory_fraction: float | None = None  # share of a GPU, if several workers use it

    def resources(self, kind: str) -> dict[str, float]:
        """The resources in Ray's terms, for a host with devices of this kind: gpu, tpu, cpu."""
        if kind == "cpu":
            return {"CPU": self.cpus}
        share = 1.0 if self.memory_fraction is None else self.memory_fraction
        return {"CPU": self.cpus, kind.upper(): (self.devices or 1) * share}

    def environment(self, kind: str) -> dict[str, str]:
        """The variables that Ray does not set. Ray itself sets the visible devices."""
        if kind == "cpu":
            return {} if self.devices is None else fake_cpus(self.devices)
        return {} if self.memory_fraction is None else memory_limit(self.memory_fraction)


CPU_ONLY = WorkerResources()


class ProcessActor:
    """An actor that starts one process on its machine and waits for it. The process ends with the
    actor.

    Args:
      words: the command line. `COORDINATOR` stands for the address at which the hosts connect.
      coordinator: the address at which the hosts connect. None on the first or only host.
    """

    def __init__(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        run: str,
        log: str,
        coordinator: str | None = None,
    ):
        self._coordinator = coordinator or f"{ray.util.get_node_ip_address()}:{free_port()}"
        with_parent = [sys.executable, "-P", "-m", "dipaco.launch.parent_death", str(os.getpid())]
        command = [self._coordinator if word == COORDINATOR else word for word in words]
        self._started = threading.Event()
        # PR_SET_PDEATHSIG follows the thread that starts the child. This thread lives as long as
        # the process. Ray's own threads may not.
        held = ([*with_parent, *command], Layout(Address.parse(run).folder).log(log), environment)
        threading.Thread(target=self._hold, args=held, daemon=True).start()
        self._started.wait()

    def _hold(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        try:
            self._process = LocalProcess(command, log, {**os.environ, **environment})
        finally:
            self._started.set()
        self._process.wait()

    def coordinator(self) -> str:
        """The address at which the worker's hosts connect, on the first host."""
        return self._coordinator

    def wait(self) -> int:
        """Waits for the process, and returns its exit code."""
        return self._process.wait()

    def terminate(self) -> None:
        """Asks the process to end in order."""
        self._process.terminate()

    def last_line(self) -> str:
        """The last line of the process's output."""
        return self._process.last_line()


class RayProcess:
    """One process of a worker, held by an actor.

    Args:
      placement_group: removed when one of its processes is killed.
    """

    def __init__(self, actor: Any, placement_group: Any):
        self._actor, self._placement_group = actor, placement_group
        self._code = actor.wait.remote()

    def poll(self) -> int | None:
        ready, _ = ray.wait([self._code], timeout=0)
        if not ready:
            return None
        try:
            return ray.get(self._code)
        except ray.exceptions.RayError:  # the actor is gone, and Ray will not start it again
            return UNSEEN

    def terminate(self) -> None:
        # An actor that still waits for resources must not start.
        if not _answers(self._actor):
            self.kill()
            return
        self._actor.terminate.remote()

    def kill(self) -> None:
        with contextlib.suppress(ray.exceptions.RayError, ValueError):
            ray.kill(self._actor)
        with contextlib.suppress(ray.exceptions.RayError, ValueError):
            ray.util.remove_placement_group(self._placement_group)

    def last_line(self) -> str:
        try:
            return ray.get(self._actor.last_line.remote(), timeout=ASK_SECONDS)
        except ray.exceptions.RayError as error:
            return str(error).strip().rpartition("\n")[2]


def _answers(actor: Any) -> bool:
    """True if an actor has started."""
    try:
        ray.get(actor.coordinator.remote(), timeout=2.0)
    except ray.exceptions.RayError:
        return False
    return True


class RayEngine(Engine):
    """Holds actors on a cluster.

    Args:
      address: HOST:PORT of the cluster's head. `local` starts a cluster on this machine. None =
        the cluster that this machine belongs to.
      resources: resources of each host of a worker.
      on_one_machine: the run's name if only one machine can work on it, else None.

    Raises:
      NoCluster, ClusterWithoutToken, ClusterNeedsServer.
    """

    def __init__(
        self,
        address: str | None,
        resources: WorkerResources,
        run: str,
        on_one_machine: str | None,
    ):
        super().__init__()
        self._run = run
        connect(address)
        machines = {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
        if on_one_machine is not None and len(machines) > 1:
            raise ClusterNeedsServer(run=on_one_machine, machines=len(machines))
        self._kind = kind_of_devices()
        self._resources = resources
        self._slices: dict[str, str] = {}  # worker -> its slice of TPUs

    def _begin(self, spec: ProcessCommand, name: str) -> list[RayProcess]:
        kind, worker = (self._kind, self._resources) if spec.takes_devices else ("cpu", CPU_ONLY)
        resources = worker.resources(kind)
        several = spec.hosts > 1
        machines = self._machines_of_slice(name, spec.hosts) if kind == "tpu" and several else None
        placement_group = ray.util.placement_group(
            [resources] * spec.hosts,
            strategy="STRICT_SPREAD" if several else "PACK",
            bundle_label_selector=machines,
        )
        environment = {**spec.environment, **worker.environment(kind)}
        actors: list[Any] = []
        for host in range(spec.hosts):
            actor_class = ray.remote(ProcessActor).options(
                num_cpus=resources["CPU"],
                num_gpus=resources.get("GPU", 0),
                resources={"TPU": resources["TPU"]} if "TPU" in resources else None,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    placement_group, placement_group_bundle_index=host
                ),
                max_concurrency=4,  # it answers calls while `wait` is running
                max_restarts=-1 if spec.hosts == 1 else 0,
                max_task_retries=-1 if spec.hosts == 1 else 0,
            )
            coordinator = actors[0].coordinator.remote() if actors else None
            actors.append(
                actor_class.remote(
                    spec.command(name, host, COORDINATOR if spec.hosts > 1 else None),
                    environment,
                    self._run,
                    name if host == 0 else f"{name}-host{host}",
                    coordinator,
                )
            )
        return [RayProcess(actor, placement_group) for actor in actors]

    def _machines_of_slice(self, worker: str, hosts: int) -> list[dict[str, str]] | None:
        """Labels of the machines of a slice of TPUs with so many hosts, in their order: the slice
        that the fewest other workers of this engine have. None: there is no such slice.
        """
        slices: dict[str, list[str]] = {}
        for node in ray.nodes():
            if node["Alive"] and (name := node["Labels"].get(SLICE)):
                slices.setdefault(name, []).append(node["Labels"][PLACE])
        fitting = [name for name, places in slices.items() if len(places) == hosts]
        if not fitting:
            return None
        taken = [self._slices[name] for name in self._workers if name in self._slices]
        self._slices[worker] = name = min(fitting, key=taken.count)
        return [{SLICE: name, PLACE: place} for place in sorted(slices[name], key=int)]

    def stop(self, grace_seconds: float):
        ended = super().stop(grace_seconds)
        ray.shutdown()
        return ended


def kind_of_devices() -> str:
    """The kind of devices that the cluster computes on: gpu, tpu, cpu."""
    there = ray.cluster_resources()
    return "gpu" if there.get("GPU") else "tpu" if there.get("TPU") else "cpu"


def _check_reachable(address: str | None) -> None:
    """Refuses an address without a listener at once. Ray itself would try for minutes."""
    host, _, port = (address or "").rpartition(":")
    if not host or "://" in host or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=LISTEN_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise NoCluster(address=address, problem=f"no answer ({error})") from error


def connect(address: str | None) -> None:
    """Connects to a cluster. `address` is described in `RayEngine`.

    Raises:
      NoCluster: there is no cluster, or it refuses.
      ClusterWithoutToken: it accepts everybody, and RAY_AUTH_MODE does not say that this is meant.
    """
    _check_reachable(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray.init(
            address=address or "auto",
            namespace="dipaco",
            include_dashboard=False if address == "local" else None,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        problem = str(error).strip().partition("\n")[0].rstrip(".")
        is_reachable = address not in (None, "local") and "://" not in address  # `_check_reachable`
        if is_reachable and os.environ.get("RAY_AUTH_MODE") != "token":
            problem += f" ({TOKEN_ADVICE})"
        raise NoCluster(address=address or "this machine", problem=problem) from error
    # Ray has set the variable if it found a token. A cluster that Ray starts here gets one anyway.
    if address != "local" and "RAY_AUTH_MODE" not in os.environ:
        ray.shutdown()
        raise ClusterWithoutToken(address=address or "this machine")
