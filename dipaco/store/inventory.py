"""Inventory of a run's folder or bucket: bytes of each kind.

A bucket lists names without sizes: these come from receipts.
"""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from dipaco.store.layout import KINDS, is_object, kind_of, object_of
from dipaco.store.remote import Remote

IN_BUCKETS = ("corpus", "objects", "snapshots", "tokens")


def stored_here(root: Path) -> dict[str, int]:
    """Name of an object, or of another file -> bytes, of everything in a run's folder. What rows of
    a sweep share by links counts in each. Folders behind links are left out.
    """
    found: dict[str, int] = {}
    for folder, _, files in os.walk(root):
        for each in files:
            file = Path(folder, each)
            with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                name = _object_of(file.relative_to(root).as_posix())
                found[name] = found.get(name, 0) + file.lstat().st_size
    return found


def stored_there(remote: Remote, known: Mapping[str, int]) -> dict[str, int]:
    """The same of a run in a bucket.

    Args:
      known: name there -> bytes. Others count as nothing.
    """
    names = {_object_of(name) for folder in IN_BUCKETS for name in remote.names(folder)}
    return {name: known.get(name, 0) for name in names}


def by_kind(stored: Mapping[str, int]) -> dict[str, int]:
    """Kind -> bytes, of the kinds that there are, in the order of `KINDS`."""
    totals = dict.fromkeys(KINDS, 0)
    for name, num_bytes in stored.items():
        totals[kind_of(name)] += num_bytes
    return {kind: num_bytes for kind, num_bytes in totals.items() if num_bytes}


def _object_of(name: str) -> str:
    return object_of(name) if is_object(name) else name
