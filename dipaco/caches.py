"""The user's cache folder, for files that can be made again. All runs share it."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """`$DIPACO_CACHE`, else `dipaco` in the user's cache folder (`$XDG_CACHE_HOME`, `~/.cache`)."""
    if chosen := os.environ.get("DIPACO_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dipaco"
