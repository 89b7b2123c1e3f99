"""A worker of several hosts: one `jax.distributed` program, whose first host claims the tasks.

The first host broadcasts each claim to the others through the key-value store of JAX's coordination
service, not through a collective: a host may wait hours for its next task, and no device should
wait with it. Every host runs the same program on the same inputs, so a host that fails reports its
error before the others wait for it. If a host falls silent or reports another result, the group
ends. Its lease expires and the task is done again. DiPaCo (arXiv 2403.10616) section 3.

On a TPU slice, and in a step of Slurm with one task a node, each host finds the others by itself.
Of several slices each is a worker.

The state of a path is gathered at the end of its phase and saved whole by the first host: an object
has one digest, however many hosts computed it.
"""

import hashlib
import hmac
import importlib
import itertools
import json
import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from dipaco.control.planning.tasks import Claim, Task
from dipaco.errors import ClaimLost, DipacoError
from dipaco.workers.errors import BadHosts

T = TypeVar("T")

TIMEOUT_SECONDS = 600.0  # another host may read its modules from a slow store
HEARTBEAT_SECONDS = 30  # without one, JAX ends the others
SHUTDOWN_SECONDS = 30  # the first host to finish waits as long for the last
WAIT_SECONDS = 1.0  # a wait for a value lasts so long, then a host looks whether it is to stop
BIND_VARIABLE = "JAX_COORDINATOR_BIND_ADDRESS"  # another address to listen at
# JAX and the runtime of TPUs take a slice for one of its own, whatever a cluster made of several.
ONE_SLICE = {
    "MEGASCALE_NUM_SLICES": "1",
    "MEGASCALE_SLICE_ID": "0",
    "MEGASCALE_COORDINATOR_ADDRESS": "",
}
LOST = "lost"  # broadcast in the place of a decision
POLL_SECONDS = 1.0  # between two looks of the first host whether another is to stop


class HostGroupBroken(Exception):
    """The hosts of this worker no longer do the same, and nothing they do counts. Not an error for
    a person: the worker ends and is started again.
    """


class SingleHost:
    """A worker of one host, with the interface of `HostGroup`."""

    index, count = 0, 1
    is_first = True
    is_stop_requested = False

    def broadcast(self, value: Any = None) -> Any:
        return value

    def decided_by_first(self, decide: Callable[[], bool]) -> bool:
        return decide()

    def run_on_all(self, act: Callable[[], T], summary: Callable[[T], str] = lambda _: "") -> T:
        return act()


SINGLE_HOST = SingleHost()


class HostGroup:
    """This process among the hosts of its worker.

    Every host must call `broadcast` and `run_on_all` in the same order.

    Args:
      secret: known to the hosts alone. JAX's service lets in any program that reaches its port, so
        what the hosts tell each other is signed with it: a stranger cannot give them tasks.
    """

    def __init__(self, client: Any, index: int, count: int, secret: str):
        self._client, self.index, self.count = client, index, count
        self._secret = secret.encode()
        self._numbers = itertools.count()
        self._published: list[str] = []  # keys to delete once all hosts have read them
        self._stop_is_requested = False
        self._polled_seconds = 0.0
        self._other_requests_stop = False

    @property
    def is_first(self) -> bool:
        return self.index == 0

    def broadcast(self, value: Any = None) -> Any:
        """Returns the first host's `value`, a JSON value, on every host. The others wait for it as
        long as the first host lives.
        """
        key = f"dipaco/broadcast/{next(self._numbers)}"
        if self.is_first:
            self._publish(key, json.dumps(value))
            return value
        return json.loads(self._read(key))

    def decided_by_first(self, decide: Callable[[], bool]) -> bool:
        """Returns the first host's decision on every host.

        Raises:
          ClaimLost: `decide` raised it. The first host raises it too.
        """
        if not self.is_first:
            decision = self.broadcast()
            if decision == LOST:
                raise ClaimLost(task="of this worker")
            return decision
        try:
            decision = decide()
        except ClaimLost:
            self.broadcast(LOST)
            raise
        return self.broadcast(decision)

    def run_on_all(self, act: Callable[[], T], summary: Callable[[T], str] = lambda _: "") -> T:
        """Runs `act` on every host and returns this host's result. If one host fails, all do.

        Args:
          summary: a text of the result, which must be the same on every host.

        Raises:
          DipacoError: the error of the first host, by index, that raised one.
          HostGroupBroken: the summaries differ, or a host is silent.
        """
        number = next(self._numbers)
        mine: T | None = None
        try:
            mine = act()
            outcome: dict[str, Any] = {"summary": summary(mine)}
        except DipacoError as error:
            values = {name: _plain(value) for name, value in error.values.items()}
            kind = [type(error).__module__, type(error).__name__]
            outcome = {"error": kind, "values": values}
        self._publish(f"dipaco/outcome/{number}/{self.index}", json.dumps(outcome))
        outcomes = [
            json.loads(self._read(f"dipaco/outcome/{number}/{host}", TIMEOUT_SECONDS))
            for host in range(self.count)
        ]
        self._delete_read_keys(f"dipaco/outcome/{number}/{self.index}")
        failed = next((each for each in outcomes if "error" in each), None)
        if failed is not None:
            module, name = failed["error"]
            raise getattr(importlib.import_module(module), name)(**failed["values"])
        if any(each != outcome for each in outcomes):
            summaries = ", ".join(each["summary"] for each in outcomes)
            raise HostGroupBroken(f"the hosts have different results: {summaries}")
        return mine  # ty: ignore[invalid-explicit-return]

    def request_stop(self, *_) -> None:
        """Asks the group to stop in order. May be called by a signal handler."""
        self._stop_is_requested = True

    @property
    def is_stop_requested(self) -> bool:
        """True if another host was asked to stop. The first host polls this."""
        now = time.monotonic()
        if not self._other_requests_stop and now - self._polled_seconds > POLL_SECONDS:
            self._polled_seconds = now
            self._other_requests_stop = bool(self._client.key_value_dir_get("dipaco/leave"))
        return self._other_requests_stop

    def shut_down(self) -> None:
        """Waits for the others at the end, so that none takes the exit of another for a crash."""
        import jax

        jax.distributed.shutdown()

    def _publish(self, key: str, value: str) -> None:
        self._published.append(key)
        self._client.key_value_set(key, f"{self._signature(key, value)} {value}")

    def _signature(self, key: str, value: str) -> str:
        return hmac.new(self._secret, f"{key} {value}".encode(), hashlib.sha256).hexdigest()

    def _checked(self, key: str, signed: str) -> str:
        signature, _, value = signed.partition(" ")
        if not hmac.compare_digest(signature, self._signature(key, value)):
            raise HostGroupBroken(f"what is at {key} was not written by a host of this worker")
        return value

    def _read(self, key: str, timeout_seconds: float = float("inf")) -> str:
        import jax

        deadline = time.monotonic() + timeout_seconds
        while True:
            try:
                found = self._client.blocking_key_value_get(key, round(WAIT_SECONDS * 1000))
                return self._checked(key, found)
            except jax.errors.JaxRuntimeError as error:
                if not str(error).startswith("DEADLINE_EXCEEDED"):
                    raise HostGroupBroken(f"{key}: {error}") from error
            if self._stop_is_requested:
                self._stop_is_requested = False
                self._client.key_value_set(f"dipaco/leave/{self.index}", "")
            if time.monotonic() > deadline:
                raise HostGroupBroken(f"nothing at {key} for {timeout_seconds:.0f} s")

    def _delete_read_keys(self, newest: str) -> None:
        """A host past a `run_on_all` has read every key published before it."""
        *old, last = self._published
        assert last == newest
        for key in old:
            self._client.key_value_delete(key)
        self._published = [last]


Hosts = SingleHost | HostGroup


class HostOptions(NamedTuple):
    """This process among the hosts of its worker, and the address of the first."""

    hosts: int = 1
    index: int = 0
    coordinator: str | None = None

    def check(self) -> None:
        """Raises `BadHosts`."""
        if self.hosts < 1:
            raise BadHosts(problem=f"`--hosts` is {self.hosts}; expected 1 or more")
        if not 0 <= self.index < self.hosts:
            raise BadHosts(problem=f"`--host-index` is {self.index}, of {self.hosts} hosts")
        _, colon, port = (self.coordinator or "").rpartition(":")
        if self.hosts > 1 and not (colon and port.isdigit()):
            expected = "expected HOST:PORT of the first host"
            raise BadHosts(problem=f"`--coordinator` is {self.coordinator}; {expected}")
        if self.hosts == 1 and self.coordinator is not None:
            raise BadHosts(problem="`--coordinator` is for several hosts; give `--hosts` as well")


def hosts_of_cluster() -> HostOptions:
    """This process among the hosts of its TPU slice or of its step of Slurm, by what the cluster
    tells JAX. Elsewhere it is alone.

    Raises:
      BadHosts: it is one of several tasks on a node.
    """
    # `jax.distributed.initialize()` asks the same classes, and listens on every interface.
    from jax._src import clusters

    for cluster in (clusters.GkeTpuCluster, clusters.GceTpuCluster, clusters.SlurmCluster):
        if cluster.is_env_present() and not _is_alone_in_slurm():
            break
    else:
        return HostOptions()
    if cluster is clusters.SlurmCluster:
        _check_step()
    elif clusters.cloud_tpu_cluster.get_tpu_env_value("MEGASCALE_NUM_SLICES"):
        os.environ.update(ONE_SLICE)
    count = cluster.get_process_count()
    if count == 1:
        return HostOptions()
    address = cluster.get_coordinator_address(round(TIMEOUT_SECONDS), None)
    return HostOptions(count, cluster.get_process_id(), address)


def _is_alone_in_slurm() -> bool:
    """True in a shell or script that Slurm started once, whatever its job may start in steps."""
    return os.environ.get("SLURM_STEP_NUM_TASKS") == "1"


def _check_step() -> None:
    """Raises `BadHosts`."""
    tasks, nodes = (os.environ.get(f"SLURM_{name}") for name in ("NTASKS", "STEP_NUM_NODES"))
    if tasks != nodes:
        raise BadHosts(
            problem=f"this step of Slurm has {tasks} tasks on {nodes} nodes. Expected one task a "
            "node (--ntasks-per-node=1), which together are one worker; `--hosts 1` makes each "
            "task a worker of its own"
        )


def join_hosts(options: HostOptions, secret: str) -> Hosts:
    """Waits for all hosts. JAX then sees the devices of all of them. Must be called before JAX
    initialises any.

    The first host listens at the given address only (JAX itself would listen on every interface),
    or where the environment says (JAX_COORDINATOR_BIND_ADDRESS).

    Args:
      secret: known to the hosts alone. The run's ledger keeps it.
    """
    if options.hosts == 1:
        return SINGLE_HOST
    import jax
    from jax._src import distributed  # its client has no public name

    jax.distributed.initialize(
        options.coordinator,
        options.hosts,
        options.index,
        coordinator_bind_address=os.environ.get(BIND_VARIABLE, options.coordinator),
        heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
        shutdown_timeout_seconds=SHUTDOWN_SECONDS,
    )
    return HostGroup(distributed.global_state.client, options.index, options.hosts, secret)


def encode_claim(claim: Claim) -> str:
    """A claim as it is broadcast to other hosts."""
    return json.dumps([list(claim.task), claim.task_id, claim.attempt, claim.worker])


def decode_claim(text: str) -> Claim:
    """The claim that `encode_claim` wrote. Raises `HostGroupBroken` for any other text."""
    try:
        (kind, arm, subject, phase), task_id, attempt, worker = json.loads(text)
    except (ValueError, TypeError) as error:
        raise HostGroupBroken(f"{text!r} is no task") from error
    return Claim(Task(kind, arm, subject, phase), task_id, attempt, worker)


def _plain(value: object) -> Any:
    return value if isinstance(value, str | int | float | None) else str(value)
