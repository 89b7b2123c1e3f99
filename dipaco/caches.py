"""The user's cache folder, for files that can be made again. All runs share it."""

import atexit
import functools
import os
import shutil
import tempfile
from pathlib import Path


def cache_folder() -> Path:
    """`$DIPACO_CACHE`, else `dipaco` in the user's cache folder (`$XDG_CACHE_HOME`, `~/.cache`). A
    user without a home, as in some containers, has one for this process alone.
    """
    if chosen := os.environ.get("DIPACO_CACHE"):
        return Path(os.path.expanduser(chosen))
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dipaco"
    except RuntimeError:  # no HOME, and the system does not know the user
        return _homeless()


@functools.cache
def _homeless() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="dipaco-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
