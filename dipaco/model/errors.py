"""Errors of this room: models, meshes and checkpoints that do not fit. The docstring of a class is its message."""

from dipaco.errors import DipacoError, MachineFault


class BadMesh(MachineFault):
    """A mesh of {asked} does not fit {num_devices} devices. {remedy}"""


class BadCheckpoint(DipacoError):
    """`{folder}` cannot be read as a checkpoint: {problem}. {remedy}"""


class CheckpointIncomplete(DipacoError):
    """`{folder}` lacks {lost}. Remove the folder and give the same command again."""
