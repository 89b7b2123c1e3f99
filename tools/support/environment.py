"""Environment variables of this process and its children, for a while."""

import contextlib
import os
from collections.abc import Generator


@contextlib.contextmanager
def environment(**variables: str) -> Generator[None]:
    """Sets variables, and restores them afterwards."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
