"""Errors of this room: what cannot be scored or reported. The docstring of a class is its message."""

from dipaco.errors import DipacoError


class BadReport(DipacoError):
    """This is not a report that this version can read: {problem}. Make it again with
    `dipaco train`.
    """
