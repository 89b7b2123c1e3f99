"""Errors of this room: requests that a run cannot answer. The docstring of a class is its message."""

from dipaco.errors import DipacoError


class RunUnfinished(DipacoError):
    """The run in {folder} has no report so far: {unfinished} to do. Go on with it: `dipaco train`, or `dipaco.run` with the same config. `.release` is what it has already."""


class SweepUnfinished(DipacoError):
    """The sweep in {folder} has no table so far, since no run of it is finished. Go on with it: `dipaco ablate`."""


class RunClosed(DipacoError):
    """The run in {folder} was closed. Open it again: `dipaco.open("{folder}")`."""


class RunOfOtherThread(DipacoError):
    """The run in {folder} belongs to the thread that opened it. Open it in this one as well: `dipaco.open("{folder}")`."""


class NoSuchModule(DipacoError):
    """This run has no module `{module}`. It has: {known}."""


class ModuleNotReleased(DipacoError):
    """The paths of this release hold `{module}` as it was at different phases, since they stop early. Say whose: `.module("{module}", path=N)`, with N one of {paths}."""


class PandasMissing(DipacoError):
    """A data frame needs pandas, which is not installed: `pip install pandas`. `.rows` gives the same as records."""
