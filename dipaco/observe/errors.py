"""Errors of this room. The docstring of a class is its message."""

from dipaco.errors import MachineFault


class TrackerRefused(MachineFault):
    """{tracker} does not take this run: {problem} {advice} Nothing was trained; without `{option}` the run starts as it is."""


class NoSuchTracker(MachineFault):
    """`{tracker}` is no tracker. There are: {known}."""
