"""Errors of this room: runs that cannot be begun, opened or continued. The docstring of a class is its message."""

from dipaco.errors import DipacoError


class DatabaseNeeded(DipacoError):
    """The run {run} is in a bucket, so its workers may be on any machine, and SQLite serves one machine only. Give it a database: --database postgresql://HOST/NAME, or env:VARIABLE."""


class NoSuchRun(DipacoError):
    """{folder} holds no run. Begin one: dipaco train CONFIG --run {folder}"""


class ReleaseOfOtherRouter(DipacoError):
    """The release of `{arm}` at phase {phase} belongs to another router than its paths were trained with.
    Restore the run folder from one copy, or name a path with --path.
    """


class FolderHoldsSweep(DipacoError):
    """{folder} holds a sweep, not a run. Its runs are the folders {folder}/rows/NAME/SEED; `dipaco ablate` continues it."""


class RunOfOtherConfig(DipacoError):
    """{folder} holds a run of another config: {difference}. Nothing was changed.
    Give the same config to continue it, or another folder for a new run.
    """


class RunOfOtherDatabase(DipacoError):
    """The facts of the run in {folder} are in {there}, not in {given}. Leave --database out, or give that one."""


class CorpusChanged(DipacoError):
    """{folder} holds another corpus than the one this run has trained on: its sources have changed since.
    Restore that folder from a copy, or start a new run folder."""

    is_lasting = True
