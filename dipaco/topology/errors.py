"""Errors of this room: what is wrong with levels, parts and module ids. The docstring of a class is its message."""

from dipaco.errors import DipacoError


class PartUnowned(DipacoError):
    """No level owns `{part}`. Levels own: {owned}. Add it to one of them; for a grid, `--set topology=2x2` spreads the blocks."""


class PartOwnedTwice(DipacoError):
    """`{part}` is owned by level `{first}` and by level `{second}`. Take it out of one of them."""


class UnknownPart(DipacoError):
    """Level `{level}` owns `{part}`, which the model does not have. It has: {known}."""


class BadTopology(DipacoError):
    """{problem}"""


class BadModuleId(DipacoError):
    """`{text}` is not a module. Expected `level/expert`, for example `early/0003`."""
