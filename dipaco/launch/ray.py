"""Actors on a Ray cluster, each of which holds one process.

A group's actors stand in a placement group with their GPUs, TPUs or CPUs, each host on a machine of
its own. Where there is no room, Ray keeps them waiting, and an autoscaling cluster grows. Who
starts what again:

    a machine or an actor died      Ray, elsewhere; the process joins the run under its old name
    the process died                the supervisor, later each time it happens again soon
    one host of several died        the supervisor, all of them: a `jax.distributed` program cannot
                                    be joined again

Ray says what should live, the ledger what counts: a process on a machine that Ray has given up may
be alive still, and finds its claim lost. When the launcher dies, Ray ends its actors; when the
cluster's head dies, all of it does. Both cost time only.
"""

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dipaco.errors import ExtraMissing
from dipaco.launch.devices import fake_cpus, memory
from dipaco.launch.engine import Command, Engine
from dipaco.launch.errors import ClusterNeedsServer, NoCluster
from dipaco.launch.local import free_port, last_line
from dipaco.store.address import Address
from dipaco.store.layout import Layout

try:
    import ray
    import ray.exceptions
    import ray.util
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
except ImportError as error:
    raise ExtraMissing(feature="`--engine ray`", package="ray", extra="ray") from error

COORDINATOR = "COORDINATOR"  # a word of a command line, until the address is known
LOST = -signal.SIGKILL  # the code of a process whose end nobody saw
LISTEN_SECONDS = 10.0  # for the head of a cluster to be heard of
ASK_SECONDS = 30.0  # for an answer of an actor that is there
# Ray does not say why a cluster did not let somebody in.
TOKEN_ADVICE = (
    "somebody listens there; a cluster that asks for a token wants RAY_AUTH_MODE=token in the "
    "environment, and its token in ~/.ray/auth_token"
)


class WorkerResources(NamedTuple):
    """What each host of a worker takes of the cluster."""

    devices: int | None = None  # None = one GPU or TPU chip where the cluster has them
    cpus: float = 1
    memory_fraction: float | None = None  # of a GPU that several share

    def resources(self, kind: str) -> dict[str, float]:
        """As Ray counts them, of a host whose devices are of this kind: gpu, tpu, cpu."""
        if kind == "cpu":
            return {"CPU": self.cpus}
        share = 1.0 if self.memory_fraction is None else self.memory_fraction
        return {"CPU": self.cpus, kind.upper(): (self.devices or 1) * share}

    def environment(self, kind: str) -> dict[str, str]:
        """What Ray does not set by itself; it says which devices are visible."""
        if kind == "cpu":
            return {} if self.devices is None else fake_cpus(self.devices)
        return {} if self.memory_fraction is None else memory(self.memory_fraction)


ON_CPU = WorkerResources()


class ProcessActor:
    """An actor: it starts one process on its machine, waits for it, and takes it along when it
    dies itself.

    Args:
      words: the command line; `COORDINATOR` stands for the address where the group meets.
      environment: variables to be added to the machine's.
      run: folder or URL, beside whose files on this machine the log goes.
      log: its name.
      coordinator: where the group meets; None where this is its first host, or there is only one.
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
        self._log = Layout(Address.parse(run).folder).log(log)
        self._log.parent.mkdir(parents=True, exist_ok=True)
        leash = [sys.executable, "-m", "dipaco.launch.parent_death", str(os.getpid())]
        command = [self._coordinator if word == COORDINATOR else word for word in words]
        self._started = threading.Event()
        # The child is on a leash of the thread that starts it: one that lives as long as this
        # process does, as Ray's own need not.
        threading.Thread(
            target=self._hold, args=([*leash, *command], environment), daemon=True
        ).start()
        self._started.wait()

    def _hold(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        try:
            with self._log.open("a") as stream:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=stream,
                    env={**os.environ, **environment},
                    start_new_session=True,
                )
        finally:
            self._started.set()
        self._process.wait()

    def coordinator(self) -> str:
        """Where the group of which this is the first host meets."""
        return self._coordinator

    def wait(self) -> int:
        """The exit code of the process, when it has ended."""
        return self._process.wait()

    def terminate(self) -> None:
        """Asks the process to end in order."""
        self._process.terminate()

    def last_words(self) -> str:
        """The last line that it printed."""
        return last_line(self._log) or f"none; see {self._log}"


class RayProcess:
    """One process of a group, held by an actor.

    Args:
      actor: a `ProcessActor`, there or not yet.
      group: its placement group, which it gives back with its last process.
    """

    def __init__(self, actor: Any, group: Any):
        self._actor, self._group = actor, group
        self._code = actor.wait.remote()

    def poll(self) -> int | None:
        ready, _ = ray.wait([self._code], timeout=0)
        if not ready:
            return None
        try:
            return ray.get(self._code)
        except ray.exceptions.RayError:  # the actor is gone, and Ray will not start it again
            return LOST

    def terminate(self) -> None:
        # Where it has no place yet, it must not get one.
        if not _is_there(self._actor):
            self.kill()
            return
        self._actor.terminate.remote()

    def kill(self) -> None:
        with contextlib.suppress(ray.exceptions.RayError, ValueError):
            ray.kill(self._actor)
        with contextlib.suppress(ray.exceptions.RayError, ValueError):
            ray.util.remove_placement_group(self._group)

    def last_words(self) -> str:
        try:
            return ray.get(self._actor.last_words.remote(), timeout=ASK_SECONDS)
        except ray.exceptions.RayError as error:
            return str(error).strip().rpartition("\n")[2]


def _is_there(actor: Any) -> bool:
    """Whether an actor has its place, and answers."""
    try:
        ray.get(actor.coordinator.remote(), timeout=2.0)
    except ray.exceptions.RayError:
        return False
    return True


class RayEngine(Engine):
    """Keeps actors on a cluster.

    Args:
      address: HOST:PORT of the cluster's head, `local` for one of this machine's own, or None: the
        one that this machine belongs to.
      shape: what each host of a worker takes.
      run: folder or URL, beside whose files logs go.
      on_one_machine: the run's name, where only one machine can work on it.

    Raises:
      NoCluster, ClusterNeedsServer.
    """

    def __init__(
        self, address: str | None, shape: WorkerResources, run: str, on_one_machine: str | None
    ):
        super().__init__()
        self._run = run
        join(address)
        machines = {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
        if on_one_machine is not None and len(machines) > 1:
            raise ClusterNeedsServer(run=on_one_machine, machines=len(machines))
        self._kind = kind_of_devices()
        self._shape = shape

    def _begin(self, role: Command, name: str) -> list[RayProcess]:
        kind, shape = (self._kind, self._shape) if role.takes_devices else ("cpu", ON_CPU)
        resources = shape.resources(kind)
        group = ray.util.placement_group(
            [resources] * role.hosts, strategy="STRICT_SPREAD" if role.hosts > 1 else "PACK"
        )
        environment = {**role.environment, **shape.environment(kind)}
        actors: list[Any] = []
        for host in range(role.hosts):
            holder = ray.remote(ProcessActor).options(
                num_cpus=resources["CPU"],
                num_gpus=resources.get("GPU", 0),
                resources={"TPU": resources["TPU"]} if "TPU" in resources else None,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    group, placement_group_bundle_index=host
                ),
                max_concurrency=4,  # it is asked things while it waits
                max_restarts=-1 if role.hosts == 1 else 0,
                max_task_retries=-1 if role.hosts == 1 else 0,
            )
            meet = actors[0].coordinator.remote() if actors else None
            actors.append(
                holder.remote(
                    role.command(name, host, COORDINATOR if role.hosts > 1 else None),
                    environment,
                    self._run,
                    name if host == 0 else f"{name}-host{host}",
                    meet,
                )
            )
        return [RayProcess(actor, group) for actor in actors]

    def stop(self, grace_seconds: float):
        ended = super().stop(grace_seconds)
        ray.shutdown()
        return ended


def kind_of_devices() -> str:
    """What the cluster computes on: gpu, tpu, cpu."""
    there = ray.cluster_resources()
    return "gpu" if there.get("GPU") else "tpu" if there.get("TPU") else "cpu"


def _check_listens(address: str | None) -> None:
    """Ray itself asks an address where nobody is for minutes."""
    host, _, port = (address or "").rpartition(":")
    if not host or "://" in host or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=LISTEN_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise NoCluster(address=address, problem=f"nobody answers ({error})") from error


def join(address: str | None) -> None:
    """Joins a cluster; see `RayEngine`. Raises `NoCluster`."""
    _check_listens(address)
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
        is_there = address not in (None, "local") and "://" not in address  # `_check_listens`
        if is_there and os.environ.get("RAY_AUTH_MODE") != "token":
            problem += f" ({TOKEN_ADVICE})"
        raise NoCluster(address=address or "this machine", problem=problem) from error
