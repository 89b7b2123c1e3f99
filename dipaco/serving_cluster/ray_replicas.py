"""Replicas of the serving loop on a Ray cluster, behind Ray Serve: routed by path, autoscaled.

The process of `dipaco serve --engine ray` is the front end: HTTP, tokenizer, router, releases. A
replica is an actor with a device of its own and one serving loop (`serving_cluster.replica`). Ray
Serve scales their number with the load and restarts those that died; `path_router.py` chooses the
replica of each request.

Ray Serve keeps an application when the process that deployed it dies. So the front end owns an
actor that dies with it, and the first replica that finds it gone deletes the application.
"""

import asyncio
import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import AsyncGenerator, Callable, Set
from typing import Any, NamedTuple

from dipaco.errors import ExtraMissing
from dipaco.launch.process_spec import variables_for
from dipaco.launch.ray import WorkerResources, connect, kind_of_devices
from dipaco.serving.decoding.stream import GenerationRequest
from dipaco.serving.engine import EngineSpec
from dipaco.serving.errors import PathCacheTooSmall
from dipaco.serving.path_cache import Modules
from dipaco.serving.releases import ServedRelease
from dipaco.serving.warm_up import WarmUp, keep_what_there_is
from dipaco.serving_cluster.errors import ReplicasFailed
from dipaco.serving_cluster.remote_cache import RemoteCache
from dipaco.serving_cluster.remote_loop import RemoteLoop, ReplicaUnavailable
from dipaco.serving_cluster.replica import Replica, ReplicaSpec, ReplicaUpdate

try:
    import ray
    import ray.exceptions
    import ray.serve
    from ray.serve.config import AutoscalingConfig, RequestRouterConfig
    from ray.serve.exceptions import RayServeException
except ImportError as error:
    package = f"{error.name}" if error.name and not error.name.startswith("ray") else "ray[serve]"
    raise ExtraMissing(feature="`--engine ray`", package=package, extra="ray") from error

NAMESPACE = "dipaco"
DEPLOYMENT = "paths"
UP_SECONDS = 5.0  # of too much load before a replica is added; Ray learns of load every 10 s
DOWN_SECONDS = 300.0  # of too little load before one is removed: it has paths in memory
LOOK_BACK_SECONDS = 12.0  # over which the load is averaged; must exceed those 10 s
HEALTH_SECONDS = 5.0  # between health checks of a replica
HEALTH_TIMEOUT_SECONDS = 60.0  # for its reply: a compilation delays it
POLL_SECONDS = 1.0  # between polls of the number of replicas
REPORT_SECONDS = 30.0  # between messages while no replica is ready
MOST_PER_ROW = 8  # requests of a replica, for each of its rows: as many as 30 clients are sent
GRACE_SECONDS = 60.0  # for a replica that is removed to finish its requests


class ReplicaRange(NamedTuple):
    """The number of replicas, and how fast it changes."""

    least: int
    most: int
    up_seconds: float = UP_SECONDS
    down_seconds: float = DOWN_SECONDS


class RayReplica(Replica):
    """A replica in an actor of Ray Serve."""

    def __init__(self, spec: ReplicaSpec, owner: str):
        from dipaco.caches import cache_folder
        from dipaco.runs.programs import use_compilation_cache

        use_compilation_cache(cache_folder() / "compiled")
        context = ray.serve.get_replica_context()
        self._owner, self._app = owner, context.app_name
        machine = f"The machine {ray.util.get_node_ip_address()}"
        super().__init__(spec, context.replica_id.unique_id, machine)
        keep_what_there_is()

    async def check_health(self) -> None:
        """For Ray Serve, which restarts a replica whose check raises."""
        if self.problem is not None:
            raise RuntimeError(self.problem)
        await asyncio.to_thread(self._check_owner)

    def _check_owner(self) -> None:
        try:
            ray.get_actor(self._owner, namespace=NAMESPACE)
        except ValueError:  # the front end is gone
            ray.serve.delete(self._app, _blocking=False)


class RayReplicas:
    """An engine whose loops are replicas on a cluster. Use `join_cluster` to make one.

    Args:
      spec: the run.
      replica_range: how many replicas.
      resources: of each replica.
      say: called with a sentence for the operator.
    """

    def __init__(
        self,
        spec: EngineSpec,
        replica_range: ReplicaRange,
        resources: WorkerResources,
        say: Callable[[str], None],
    ):
        self._spec, self._range, self._resources, self._say = spec, replica_range, resources, say
        self._name = f"dipaco-{socket.gethostname()}-{os.getpid()}"
        self._loop = _OwnedLoop(spec, self._generate, self._close)
        self._cache = RemoteCache(self._loop)
        self._handle: Any = None
        self._is_closed = threading.Event()
        self._watching = threading.Thread(target=self._watch, name="replica-watch", daemon=True)

    @property
    def cache(self) -> RemoteCache:
        return self._cache

    @property
    def loop(self) -> RemoteLoop:
        return self._loop

    @property
    def num_programs(self) -> int:
        return 0  # replicas compile

    def start(self, served: ServedRelease | None = None, warm_up: WarmUp | None = None) -> None:
        """Starts the least number of replicas, and waits for the first.

        Raises:
          PathCacheTooSmall: no path can be served.
          ReplicasFailed.
        """
        if served is not None and self._spec.path_bytes is not None:
            self._check_fits(served, self._spec.path_bytes)

        class Owner:
            """Lives as long as this process. Defined here, so its actor imports nothing."""

        owner: Any = ray.remote(Owner)
        self._owner = owner.options(name=self._name, num_cpus=0).remote()
        ray.get(self._owner.__ray_ready__.remote())
        self._say(f"starting {self._range.least} to {self._range.most} replicas on the cluster")
        try:
            ray.serve.start(proxy_location="Disabled", logging_config={"log_level": "WARNING"})
            target = ray.serve.RunTarget(self._deployment(), self._name, route_prefix=None)
            (handle,) = ray.serve.run_many([target], wait_for_applications_running=False)
            self._handle = handle.options(stream=True, method_name="generate")
            self._wait_for_the_first()
        except (RayServeException, ray.exceptions.RayError) as error:
            raise ReplicasFailed(problem=_last_line(str(error))) from error
        self._loop.run()
        self._watching.start()

    def _wait_for_the_first(self) -> None:
        started, report_seconds = time.monotonic(), REPORT_SECONDS
        while not (status := self._status()).num_running:
            if status.has_failed:
                raise ReplicasFailed(problem=_last_line(status.message))
            if (waited := time.monotonic() - started) > report_seconds:
                report_seconds += REPORT_SECONDS
                self._say(f"no replica is ready after {waited:.0f} s: {_last_line(status.message)}")
            time.sleep(0.2)
        self._loop.set_num_replicas(status.num_running)

    def _status(self) -> "_ReplicaStatus":
        app = ray.serve.status().applications[self._name]
        paths = app.deployments.get(DEPLOYMENT)
        number = paths.replica_states.get("RUNNING", 0) if paths else 0
        message = (paths.message if paths else "") or app.message
        return _ReplicaStatus(number, app.status == "DEPLOY_FAILED", message)

    def _deployment(self) -> Any:
        limits, kind = self._spec.limits, kind_of_devices()
        resources = self._resources.resources(kind)
        run = self._spec.address.absolute
        variables = {name: os.environ[name] for name in variables_for(run, None)}
        busy = max(1, limits.rows // 2)
        router: dict[str, Any] = {
            "request_router_class": "dipaco.serving_cluster.path_router.PathRouter",
            "request_router_kwargs": {"busy": busy},
        }
        options = {
            "name": DEPLOYMENT,
            "max_ongoing_requests": MOST_PER_ROW * limits.rows,
            "autoscaling_config": AutoscalingConfig(
                min_replicas=self._range.least,
                max_replicas=self._range.most,
                target_ongoing_requests=busy,
                upscale_delay_s=self._range.up_seconds,
                downscale_delay_s=self._range.down_seconds,
                look_back_period_s=LOOK_BACK_SECONDS,
            ),
            "request_router_config": RequestRouterConfig(**router),
            "ray_actor_options": {
                "num_cpus": resources.pop("CPU"),
                "num_gpus": resources.pop("GPU", 0),
                "resources": resources,
                "runtime_env": {"env_vars": {**variables, **self._resources.environment(kind)}},
            },
            "max_constructor_retry_count": 2,
            "health_check_period_s": HEALTH_SECONDS,
            "health_check_timeout_s": HEALTH_TIMEOUT_SECONDS,
            "graceful_shutdown_timeout_s": GRACE_SECONDS,
            "graceful_shutdown_wait_loop_s": 0.5,
        }
        spec = self._spec
        vocabulary = None if spec.grammars is None else spec.grammars.vocabulary
        replica_spec = ReplicaSpec(
            run, spec.model, limits, spec.path_bytes, spec.topology, vocabulary
        )
        deployment: Any = ray.serve.deployment(RayReplica)
        return deployment.options(**options).bind(replica_spec, self._name)

    async def _generate(
        self, request: GenerationRequest, modules: Modules, tried: Set[str]
    ) -> AsyncGenerator[ReplicaUpdate]:
        handle = self._handle.options(multiplexed_model_id=" ".join([str(request.path), *tried]))
        updates = handle.remote(request, modules)
        is_over = False
        try:
            async for update in updates:
                yield update
            is_over = True
        except (ray.exceptions.RayError, RayServeException) as error:
            raise ReplicaUnavailable from error
        finally:
            if not is_over:
                updates.cancel()

    def _watch(self) -> None:
        is_said = False
        while not self._is_closed.wait(POLL_SECONDS):
            try:
                self._loop.set_num_replicas(self._status().num_running)
                is_said = False
            except Exception as error:
                if not is_said:
                    problem = _last_line(f"{type(error).__name__}: {error}")
                    self._say(f"Ray does not say how many replicas there are ({problem})")
                is_said = True

    def _check_fits(self, served: ServedRelease, max_bytes: int) -> None:
        sizes = [
            sum(receipt.num_bytes for receipt in served.modules_of(path).values())
            for path in range(served.num_paths)
        ]
        if min(sizes) > max_bytes:
            raise PathCacheTooSmall(num_bytes=min(sizes), max_bytes=max_bytes)

    def _close(self) -> None:
        """Deletes the replicas, and leaves the cluster."""
        if self._is_closed.is_set():
            return
        self._is_closed.set()
        if self._watching.is_alive():
            self._watching.join(timeout=2 * POLL_SECONDS)  # it may hang on a lost cluster
        with contextlib.suppress(RayServeException, ray.exceptions.RayError):
            ray.serve.delete(self._name, _blocking=False)
            if self._handle is not None:
                self._handle.shutdown()
        # Not `ray.shutdown`: a thread of Ray Serve would then start a new cluster. The rest ends
        # with the process.


class _ReplicaStatus(NamedTuple):
    """What Ray Serve reports about the replicas."""

    num_running: int
    has_failed: bool
    message: str


class _OwnedLoop(RemoteLoop):
    """A remote loop whose `stop` also deletes the replicas."""

    def __init__(self, spec: EngineSpec, generate: Any, close: Callable[[], None]):
        super().__init__(spec, generate)
        self._close = close

    def stop(self, drain_seconds: float) -> None:
        super().stop(drain_seconds)
        self._close()


def join_cluster(
    address: str | None,
    replica_range: ReplicaRange,
    resources: WorkerResources,
    say: Callable[[str], None],
) -> Callable[[EngineSpec], RayReplicas]:
    """Joins a cluster; returns the function with which a service makes its engine.

    Must be called before JAX is used: a local cluster is forked from this process.

    Args:
      address: of the cluster, as `launch.ray.RayEngine` takes it.

    Raises:
      NoCluster, ClusterWithoutToken.
    """
    connect(address)
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    return lambda spec: RayReplicas(spec, replica_range, resources, say)


def _last_line(report: str) -> str:
    """The line of a long report that names the problem."""
    lines = [line.strip() for line in report.splitlines() if line.strip()]
    return lines[-1] if lines else "no reason was given"
