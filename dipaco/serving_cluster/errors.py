"""Errors of this room: replicas that cannot be reached. The docstring of a class is its message."""

from dipaco.errors import DipacoError


class RunFolderNotVisible(DipacoError):
    """{machine} does not see the run's folder {folder}, so its replicas can read no module. Put the run into a bucket, or into a folder that all machines of the cluster share."""


class ReplicasFailed(DipacoError):
    """No replica could be started: {problem}"""


class ReplicaError(DipacoError):
    """Something went wrong inside a replica of the serving loop ({problem}); it stands in the log of {replica}."""
