"""Errors of this room: processes that cannot be started. The docstring of a class is its message."""

from dipaco.errors import DipacoError


class TooFewDevices(DipacoError):
    """Workers want {asked} devices here, and {there} of kind {kind} can be seen. Ask for fewer: `--devices-per-worker`, `--workers`."""


class NoCluster(DipacoError):
    """There is no Ray cluster at `{address}`: {problem}. Start one (`ray start --head`), or give `--address HOST:PORT`; `--address local` makes one of this machine."""


class ClusterNeedsServer(DipacoError):
    """The run {run} has its facts in SQLite, which serves the processes of one machine, and the cluster has {machines}. Begin the run with --database postgresql://HOST/NAME, or env:VARIABLE."""


class WorkersEnded(DipacoError):
    """Worker {worker} ended, and another would end like it. Its last words: {words}"""
