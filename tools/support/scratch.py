"""A folder for as long as a tool runs."""

import contextlib
import tempfile
from collections.abc import Generator
from pathlib import Path


@contextlib.contextmanager
def scratch(under: str | None, prefix: str) -> Generator[Path]:
    """A new folder that is removed afterwards. `under` is made if it is missing, and None means the
    folder of temporary files.
    """
    if under is not None:
        Path(under).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=under, prefix=prefix) as name:
        yield Path(name)
