"""Metrics for Prometheus: the work of this process, and the state of its run.

Names, units and labels follow the conventions of Prometheus and OpenTelemetry. Names have base
units, counters end in `_total`, dimensions are labels (`kind`, `outcome`, `state`).

    dipaco_worker_tasks_total{kind,outcome}        finished, lost, saved_part_way, postponed, failed
    dipaco_worker_task_seconds_total{kind}         spent in tasks, of any outcome
    dipaco_worker_tokens_total                     trained on, recorded or not
    dipaco_worker_bytes_total{kind}                modules fetched, contributions sent, recorded
    dipaco_worker_leases_lost_total                tasks that another worker took over
    dipaco_run_tasks{kind,arm,state}               now in the ledger
    dipaco_run_tokens{arm}                         recorded, less the tokens that were rolled back
    dipaco_run_bytes{kind}                         exchanged and written, less the rolled back ones
    dipaco_run_refusals_total                      objects that were refused or found damaged
    dipaco_run_phase{arm,module}                   newest phase of every module
    dipaco_run_workers{state}                      here, silent, left, lost: as `status` says
    dipaco_run_participation_ratio                 share of all workers' time in recorded tasks

`dipaco_run_*` is read from the ledger, at most every five seconds however many clients scrape. It
is the same on every process of a run.
"""

import contextlib
import math
import socket
import threading
import time
from collections import Counter as Counts
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

from dipaco.control.ledger import Ledger
from dipaco.control.planning.tasks import Claim, Fact, ModuleReady, PathTrained
from dipaco.errors import CannotListen, DipacoError, needs_extra

FRESH_SECONDS = 5.0  # one reading of the ledger answers every scrape for so long


class WorkerMetrics:
    """Callbacks of a worker's loop that count events.

    Args:
      registry: a registry of prometheus_client.
      now: monotonic seconds.
    """

    def __init__(self, registry: Any, now: Callable[[], float] = time.monotonic):
        from prometheus_client import Counter

        def counter(name: str, help_text: str, *labels: str) -> Any:
            return Counter(f"dipaco_worker_{name}", help_text, labels, registry=registry)

        self._now, self._began_seconds = now, now()
        self._tasks = counter("tasks", "Tasks, by outcome.", "kind", "outcome")
        self._seconds = counter("task_seconds", "Spent in tasks.", "kind")
        self._tokens = counter("tokens", "Trained on, recorded or not.")
        self._bytes = counter("bytes", "Exchanged with other machines, recorded.", "kind")
        self._leases_lost = counter("leases_lost", "Tasks that another worker took over.")

    def task_started(self, claim: Claim) -> None:
        self._began_seconds = self._now()

    def step_taken(self, claim: Claim, loss: float, tokens: int) -> None:
        self._tokens.inc(tokens)

    def task_finished(self, claim: Claim, facts: list[Fact]) -> None:
        self._ended(claim, "finished")
        for fact in facts:
            if isinstance(fact, PathTrained):
                self._bytes.labels("modules_fetched").inc(fact.bytes_down)
                self._bytes.labels("contributions_sent").inc(fact.bytes_up)
                self._bytes.labels("snapshots_written").inc(fact.snapshot.num_bytes)
            if isinstance(fact, ModuleReady):
                self._bytes.labels("modules_written").inc(fact.parameters.num_bytes)

    def claim_lost(self, claim: Claim) -> None:
        self._ended(claim, "lost")
        self._leases_lost.inc()

    def task_released(self, claim: Claim, step: int) -> None:
        self._ended(claim, "saved_part_way")

    def task_postponed(self, claim: Claim, error: DipacoError) -> None:
        self._ended(claim, "postponed")

    def task_failed(self, claim: Claim, reason: str, *, is_final: bool) -> None:
        self._ended(claim, "failed")

    def _ended(self, claim: Claim, outcome: str) -> None:
        self._tasks.labels(claim.task.kind, outcome).inc()
        self._seconds.labels(claim.task.kind).inc(self._now() - self._began_seconds)


class RunMetrics:
    """The state of a run. One scrape at a time reads it from the ledger. Other scrapes meanwhile
    get the last reading.

    Args:
      open_ledger: opens a connection for the calling thread.
      fresh_seconds: one reading answers every scrape for so long.
      now: monotonic seconds.
    """

    def __init__(
        self,
        open_ledger: Callable[[], Ledger],
        fresh_seconds: float = FRESH_SECONDS,
        now: Callable[[], float] = time.monotonic,
    ):
        self._open_ledger, self._fresh_seconds, self._now = open_ledger, fresh_seconds, now
        self._reading = threading.Lock()
        self._families: list[Any] = []
        self._stale_seconds = -math.inf  # when the ledger is read again

    def collect(self) -> Iterator[Any]:
        # Waits for another scrape's reading only if there is no older one: a database may be away.
        if self._reading.acquire(blocking=not self._families):
            try:
                if self._now() >= self._stale_seconds:
                    self._families = list(self._read())
                    self._stale_seconds = self._now() + self._fresh_seconds
            finally:
                self._reading.release()
        yield from self._families

    def _read(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        def family(kind: Any, name: str, help_text: str, labels: Iterable[str], values: Any) -> Any:
            metric = kind(f"dipaco_run_{name}", help_text, labels=list(labels))
            for of, value in values:
                metric.add_metric([str(label) for label in of], value)
            return metric

        with contextlib.closing(self._open_ledger()) as ledger, ledger.at_one_moment():
            tasks = [
                ((kind, arm, state), number)
                for (kind, arm), states in ledger.queue.task_counts().items()
                for state, number in states.items()
            ]
            tokens = [((arm,), number) for arm, number in ledger.progress.tokens_by_arm().items()]
            num_bytes = [
                ((kind,), number) for kind, number in ledger.progress.bytes_by_kind().items()
            ]
            phases = [((arm, m), phase) for arm, m, phase, _ in ledger.progress.newest_modules()]
            refusals, members = ledger.redos.num_refusals(), ledger.members.as_seen_here()
        states = Counts(member.presence for member in members)
        live = sum(member.live_seconds for member in members)
        share = sum(member.committed_seconds for member in members) / max(live, 1e-9)
        gauge, counter = GaugeMetricFamily, CounterMetricFamily
        of_task = ("kind", "arm", "state")
        yield family(gauge, "tasks", "Tasks in the ledger.", of_task, tasks)
        yield family(gauge, "tokens", "Trained on and recorded.", ("arm",), tokens)
        yield family(gauge, "bytes", "Exchanged and written.", ("kind",), num_bytes)
        yield family(counter, "refusals", "Objects refused or damaged.", (), [((), refusals)])
        yield family(gauge, "phase", "Of every module.", ("arm", "module"), phases)
        workers = [((state,), states[state]) for state in ("here", "silent", "left", "lost")]
        yield family(gauge, "workers", "Workers that ever took part.", ("state",), workers)
        help_text = "Share of all workers' time in tasks that were recorded."
        yield family(gauge, "participation_ratio", help_text, (), [((), min(1.0, share))])


class CombinedCallbacks:
    """Calls several callbacks, each only if it has the method."""

    def __init__(self, *callbacks: Any):
        self._callbacks = callbacks

    def __getattr__(self, name: str) -> Callable[..., None]:
        def call(*arguments: Any, **settings: Any) -> None:
            for callbacks in self._callbacks:
                if hasattr(callbacks, name):
                    getattr(callbacks, name)(*arguments, **settings)

        return call


def check_extra() -> None:
    """Raises `ExtraMissing` if the client of Prometheus is not installed."""
    with needs_extra("metrics", package="prometheus-client", feature="`--metrics-port`"):
        import prometheus_client  # noqa: F401


def check_port(port: int, host: str) -> None:
    """Raises `CannotListen` if `serve_metrics` could not listen there at this moment."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        socket.create_server(address[:2], family=family).close()
    except OSError as error:
        raise _cannot_listen(port, host, error) from error


@contextlib.contextmanager
def serve_metrics(
    port: int,
    open_ledger: Callable[[], Ledger],
    host: str = "127.0.0.1",
    fresh_seconds: float = FRESH_SECONDS,
) -> Generator[WorkerMetrics]:
    """Serves `GET /metrics` from a thread while the block runs. `open_ledger` and `fresh_seconds`
    are described in `RunMetrics`. Raises `ExtraMissing`, `CannotListen`.
    """
    check_extra()
    from prometheus_client import CollectorRegistry, start_http_server

    registry: Any = CollectorRegistry()
    registry.register(RunMetrics(open_ledger, fresh_seconds))
    work = WorkerMetrics(registry)
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except (OSError, OverflowError) as error:
        raise _cannot_listen(port, host, error) from error
    try:
        yield work
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _cannot_listen(port: int, host: str, error: Exception) -> CannotListen:
    return CannotListen(where=f"{host}:{port}", problem=error, option="--metrics-port")
