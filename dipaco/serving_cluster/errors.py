"""Errors of this room: replicas that cannot be reached. The docstring of a class is its message."""

from dipaco.errors import DipacoError


class RunFolderNotVisible(DipacoError):
    """{machine} cannot see the run's folder {folder}, so its replicas cannot read modules. Put the run into a bucket, or into a folder that all machines of the cluster share."""


class ReplicasFailed(DipacoError):
    """No replica could be started: {problem}"""


class ReplicaError(DipacoError):
    """A replica of the serving loop failed ({problem}). See the log of {replica}."""
