"""A check of many files, settings or pages in one test, which names all that do not pass."""

from collections.abc import Callable, Iterable
from typing import Any


def failures(check: Callable[[Any], object], each: Iterable[Any]) -> dict[str, str]:
    """What fails -> why: its assertion, or a difference that the check returns."""
    found = {}
    for one in each:
        try:
            said = check(one)
        except AssertionError as error:
            said = str(error) or "fails"
        if said:
            found[str(one)] = str(said)
    return found
