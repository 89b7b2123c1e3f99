"""Errors of this room: contributions that cannot be decoded. The docstring of a class is its message."""

from dipaco.errors import DipacoError


class StructureMismatch(DipacoError):
    """{what} returned other parts than it was given: {difference}."""


class BadEncoding(DipacoError):
    """A contribution cannot be decoded: {problem}."""


class NotFinite(DipacoError):
    """{what} holds a NaN or an infinity in `{name}`. Nothing was averaged. Lower `inner.learning_rate` in a new run."""
