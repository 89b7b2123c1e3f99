"""Errors of this room: requests and releases that cannot be served. The docstring of a class is its message."""

from dipaco.errors import DipacoError


class ContextTooLong(DipacoError):
    """The prompt has {num_tokens} tokens, and {where} holds {limit}. {remedy}"""


class NoRoomForPath(DipacoError):
    """All {pinned} paths in memory are in use. Try again, or raise `--path-bytes`."""


class ReleaseMixed(DipacoError):
    """The release of `{arm}` at phase {phase} is not one consistent set: {problem}. It is not served."""


class BadChatTemplate(DipacoError):
    """The chat template {file} cannot be used: {problem}."""
