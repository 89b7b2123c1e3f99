"""A worker of several hosts: one `jax.distributed` program, whose first host alone talks to the
queue and tells the others what to do.

They learn it through the key-value store of JAX's coordination service, and not by a collective of
the devices: a host may wait for hours for its next task, and between two steps no device has to.
What a device sees is the same program with the same inputs on every host; so a host that meets an
error says so before the others wait for it, and where one falls silent or says other things, the
group ends: its lease ends with it, and the task is done again. DiPaCo (arXiv 2403.10616) section 3.

The state of a path is gathered at the end of its phase and saved whole by the first host, when all
have come so far: an object is one thing with one digest, however many hosts made it.
"""

import importlib
import itertools
import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from dipaco.control.tasks import Claim, Task
from dipaco.errors import DipacoError
from dipaco.workers.errors import BadHosts

T = TypeVar("T")

TIMEOUT_SECONDS = 600.0  # for another host, which may read its modules from a slow store
HEARTBEAT_SECONDS = 30  # without one, JAX ends the others
LEAVING_SECONDS = 30  # for the last host to come to the end
LISTEN_SECONDS = 1.0  # between two looks whether somebody asks this process to leave
LOOK_SECONDS = 1.0


class HostGroupBroken(Exception):
    """The hosts of this worker no longer do the same; nothing of what they do counts. Not for a
    person to put right: the worker ends, and is started again.
    """


class SingleHost:
    """The only host: has nobody to tell, and nobody to wait for."""

    index, count = 0, 1
    is_first = True
    is_stop_requested = False

    def broadcast(self, word: Any = None) -> Any:
        return word

    def run_on_all(self, act: Callable[[], T], word: Callable[[T], str] = lambda _: "") -> T:
        return act()


SINGLE_HOST = SingleHost()


class HostGroup:
    """This process among the hosts of its worker. Every host must call `broadcast` and `run_on_all` in the
    same order.

    Args:
      client: of JAX's coordination service.
      index: of this host; the first is 0.
      count: of all hosts.
    """

    def __init__(self, client: Any, index: int, count: int):
        self._client, self.index, self.count = client, index, count
        self._numbers = itertools.count()
        self._spoken: list[str] = []  # keys that may be forgotten when all have read them
        self._is_leaving = False
        self._looked_seconds = 0.0
        self._somebody_leaves = False

    @property
    def is_first(self) -> bool:
        return self.index == 0

    def broadcast(self, word: Any = None) -> Any:
        """What the first host says, a JSON value; the others, whatever they give, hear it. They
        wait as long as it lives.
        """
        key = f"dipaco/word/{next(self._numbers)}"
        if self.is_first:
            self._say(key, json.dumps(word))
            return word
        return json.loads(self._hear(key))

    def run_on_all(self, act: Callable[[], T], word: Callable[[T], str] = lambda _: "") -> T:
        """What `act` returns here, once every host has done it; where one failed, all fail.

        Args:
          act: is done by every host.
          word: what it came to, which must be the same for all.

        Raises:
          DipacoError: that of the first host that met one.
          HostsApart: they did not come to the same, or one is silent.
        """
        number = next(self._numbers)
        mine: T | None = None
        try:
            mine = act()
            said: dict[str, Any] = {"word": word(mine)}
        except DipacoError as error:
            values = {name: _plain(value) for name, value in error.values.items()}
            kind = [type(error).__module__, type(error).__name__]
            said = {"error": kind, "values": values}
        self._say(f"dipaco/did/{number}/{self.index}", json.dumps(said))
        all_said = [
            json.loads(self._hear(f"dipaco/did/{number}/{host}", TIMEOUT_SECONDS))
            for host in range(self.count)
        ]
        self._forget(f"dipaco/did/{number}/{self.index}")
        failed = next((each for each in all_said if "error" in each), None)
        if failed is not None:
            module, name = failed["error"]
            raise getattr(importlib.import_module(module), name)(**failed["values"])
        if any(each != said for each in all_said):
            raise HostGroupBroken(f"they came to {', '.join(each['word'] for each in all_said)}")
        return mine  # ty: ignore[invalid-explicit-return]

    def request_stop(self, *_) -> None:
        """Asks the group to end in order. May be called by a signal handler."""
        self._is_leaving = True

    @property
    def is_stop_requested(self) -> bool:
        """Whether another host was told to end. For the first host, which looks now and then."""
        now = time.monotonic()
        if not self._somebody_leaves and now - self._looked_seconds > LOOK_SECONDS:
            self._looked_seconds = now
            self._somebody_leaves = bool(self._client.key_value_dir_get("dipaco/leave"))
        return self._somebody_leaves

    def shut_down(self) -> None:
        """Waits for the others at the end, so that none takes the end of another for a death."""
        import jax

        jax.distributed.shutdown()

    def _say(self, key: str, value: str) -> None:
        self._spoken.append(key)
        self._client.key_value_set(key, value)

    def _hear(self, key: str, patience_seconds: float = float("inf")) -> str:
        import jax

        deadline = time.monotonic() + patience_seconds
        while True:
            try:
                return self._client.blocking_key_value_get(key, round(LISTEN_SECONDS * 1000))
            except jax.errors.JaxRuntimeError as error:
                if not str(error).startswith("DEADLINE_EXCEEDED"):
                    raise HostGroupBroken(f"{key}: {error}") from error
            if self._is_leaving:
                self._is_leaving = False
                self._client.key_value_set(f"dipaco/leave/{self.index}", "")
            if time.monotonic() > deadline:
                raise HostGroupBroken(f"nothing at {key} for {patience_seconds:.0f} s")

    def _forget(self, newest: str) -> None:
        """Whoever is past a `run_on_all` has read all that was said before it."""
        *old, last = self._spoken
        assert last == newest
        for key in old:
            self._client.key_value_delete(key)
        self._spoken = [last]


Hosts = SingleHost | HostGroup


class HostOptions(NamedTuple):
    """Which host of how many this process is, and where they meet."""

    hosts: int
    index: int
    coordinator: str | None

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
            raise BadHosts(problem="`--coordinator` is where several meet; give `--hosts` as well")


def join_hosts(meeting: HostOptions) -> Hosts:
    """Waits for all hosts. From then on JAX sees the devices of all; must be called before it is
    asked for any.
    """
    if meeting.hosts == 1:
        return SINGLE_HOST
    import jax
    from jax._src import distributed  # its client has no public name

    jax.distributed.initialize(
        meeting.coordinator,
        meeting.hosts,
        meeting.index,
        heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
        shutdown_timeout_seconds=LEAVING_SECONDS,
    )
    return HostGroup(distributed.global_state.client, meeting.index, meeting.hosts)


def encode_claim(claim: Claim) -> str:
    """A claim, as it is told to other hosts."""
    return json.dumps([list(claim.task), claim.task_id, claim.attempt, claim.worker])


def decode_claim(words: str) -> Claim:
    """The same again. Raises `HostGroupBroken` where it is none."""
    try:
        (kind, arm, subject, phase), task_id, attempt, worker = json.loads(words)
    except (ValueError, TypeError) as error:
        raise HostGroupBroken(f"told {words!r}, which is no task") from error
    return Claim(Task(kind, arm, subject, phase), task_id, attempt, worker)


def _plain(value: object) -> Any:
    return value if isinstance(value, str | int | float | None) else str(value)
