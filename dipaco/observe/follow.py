"""Reads a run's event file while other processes write to it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from dipaco.observe.events import Event


class EventFileReader:
    """Reads new lines of the file, starting at its present end."""

    def __init__(self, file: Path):
        self._file = file
        self._position = file.stat().st_size if file.exists() else 0

    def new(self) -> Iterator[Event]:
        """The events appended since the last call. An incomplete line is left for the next."""
        if not self._file.exists():
            return
        with self._file.open("rb") as stream:
            stream.seek(self._position)
            for line in stream:
                if not line.endswith(b"\n"):
                    return
                self._position += len(line)
                record = _record(line)
                if record is not None:
                    yield Event(record.pop("event"), record, record.pop("level"))


def _record(line: bytes) -> dict[str, Any] | None:
    """One event. None for a line that a crash cut off."""
    try:
        record = msgspec.json.decode(line)
        del record["time"]
    except (msgspec.DecodeError, KeyError, TypeError):
        return None
    return record
