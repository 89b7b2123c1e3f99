"""Environment variables of this process and of those that it starts, for a while."""

import contextlib
import os
from collections.abc import Generator


@contextlib.contextmanager
def environment(**variables: str) -> Generator[None]:
    """Sets them; afterwards they are as before."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
