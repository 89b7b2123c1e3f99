"""Errors of this room: processes that cannot be started. The docstring of a class is its message."""

from dipaco.errors import DipacoError


class TooFewDevices(DipacoError):
    """The workers and evaluators need {asked} devices here, and {there} of kind {kind} are visible. Ask for fewer: `--workers`, `--evaluators`, `--devices-per-worker`, a smaller `mesh`; with `JAX_PLATFORMS=cpu` they compute on the CPU."""


class MeshUnfit(DipacoError):
    """Each worker is given {devices} devices and cannot train this run with them: {problem} Nothing was begun. Change `mesh`, or give another `--devices-per-worker` or `--hosts-per-worker`."""


class LauncherNameTaken(DipacoError):
    """A launcher named `{name}` is at work on this run, as process {pid} of this machine: workers of this one would have the names of its workers. Nothing was started. Give another `--name` or none, or end that one; `dipaco scale --launcher {name!q}` changes how many workers it keeps."""


class NoLauncher(DipacoError):
    """No launcher follows this: of {run}, these were ever started: {known}. Nothing was recorded. `dipaco launch CONFIG --run {run!q} --workers N` starts one; workers that were started by hand are ended with SIGTERM, and more are started with `dipaco worker --run {run!q}`."""


class LauncherElsewhere(DipacoError):
    """Another launcher named `{name}` is at work on this run: `{worker}` would be a worker of both, and is one on {host}. Give one of them another `--name`, or none."""


class NoSuchDevice(DipacoError):
    """`{device}` is asked for, and {there} GPUs are visible here. `--device cpu` computes without one; `CUDA_VISIBLE_DEVICES` may hide some."""


class NoCluster(DipacoError):
    """There is no Ray cluster at `{address}`: {problem}. Start one (`ray start --head`), or give `--address HOST:PORT`; `--address local` starts one on this machine."""


class ClusterWithoutToken(DipacoError):
    """This process has no token for the Ray cluster at `{address}`, so any program that reaches a port of that cluster can run others on it and read the run's credentials. Make a token (`ray get-auth-token --generate`) and start the cluster and this command with RAY_AUTH_MODE=token. On a network that nobody else reaches, RAY_AUTH_MODE=disabled goes without one."""


class ClusterNeedsServer(DipacoError):
    """The run {run} has its facts in SQLite, which only processes of one machine can use, and the cluster has {machines} machines. Begin the run with --database postgresql://HOST/NAME, or env:VARIABLE."""


class WorkersNeverJoined(DipacoError):
    """All workers end while they start, {count} times each by now, and new ones would too. The last output of {worker}: {words}"""


class WorkersEnded(DipacoError):
    """Workers are refused, and new ones would be too. The last output of {worker}: {words}"""
