"""Errors of this room: what cannot be scored or reported. The docstring of a class is its message."""

from dipaco.errors import DipacoError


class BadReport(DipacoError):
    """This version cannot read the report: {problem}. Make it again with `dipaco train`."""
