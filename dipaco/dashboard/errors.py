"""Errors of this room. The docstring of a class is its message."""

from dipaco.errors import DipacoError


class RunNotReadable(DipacoError):
    """`{run}` could not be read: {problem}. This is a defect of the dashboard; the run goes on. Start `dipaco dashboard` again."""


class PageIsFolder(DipacoError):
    """{file} is a folder. The page is one file: give it a name, as in {inside}."""


class TextsNotReadable(DipacoError):
    """Where the text of `{run}` went could not be read: {problem}. It is read when it is asked for again."""
