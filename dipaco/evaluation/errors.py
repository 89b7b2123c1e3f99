"""Errors of this room: what cannot be scored or reported. The docstring of a class is its message."""

from dipaco.errors import DipacoError


class PictureUnwritable(DipacoError):
    """`{file}` is not the name of a picture. Expected a name that ends in one of {known}."""


class BadReport(DipacoError):
    """This version cannot read the report: {problem}. Make it again with `dipaco train`."""
