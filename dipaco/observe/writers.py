"""Writers of events, and the reader of an event file.

A writer has `write(event)` and `close()`, and is a context manager:

    with Several(Lines(sys.stderr), JsonLines(run / "events.jsonl", clock=time.time)) as log:
        log.write(Event("resumed", {"done": 3, "total": 17}))
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self, TextIO

import msgspec

from dipaco.observe.events import Event


class Closing:
    """Something that is closed at the end of a `with`."""

    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_) -> None:
        self.close()


class EventWriter(Closing):
    """A destination of events."""

    def write(self, event: Event) -> None:
        raise NotImplementedError


class Lines(EventWriter):
    """Writes one readable line for each event. Warnings and errors are marked."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def write(self, event: Event) -> None:
        print(event.line, file=self._stream, flush=True)


class JsonLines(EventWriter):
    """Appends one JSON object a line: `{"time", "level", "event", ...fields}`.

    Processes may share the file. Each line is one `write` in append mode, which the system does not
    interleave. A crash may leave half a line. The next writer then starts a new one.
    """

    def __init__(self, file: Path | str, clock: Callable[[], float]):
        self._clock = clock  # seconds since 1970
        self._descriptor = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        size = os.fstat(self._descriptor).st_size
        if size and os.pread(self._descriptor, 1, size - 1) != b"\n":
            os.write(self._descriptor, b"\n")

    def write(self, event: Event) -> None:
        head = {"time": self._clock(), "level": event.level, "event": event.name}
        os.write(self._descriptor, msgspec.json.encode({**head, **event.fields}) + b"\n")

    def close(self) -> None:
        os.close(self._descriptor)


class Several(EventWriter):
    """Passes every event to each of its writers, in order."""

    def __init__(self, *writers: EventWriter):
        self._writers = writers

    def write(self, event: Event) -> None:
        for writer in self._writers:
            writer.write(event)

    def close(self) -> None:
        for writer in self._writers:
            writer.close()


class EventFileReader:
    """Reads a run's event file while other processes append to it. Starts at its present end."""

    def __init__(self, file: Path):
        self._file = file
        self._position = file.stat().st_size if file.exists() else 0

    def new(self) -> Iterator[Event]:
        """The events appended since the last call. An incomplete line is left for the next call."""
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
    """The fields of one line. None for a line that a crash cut off."""
    try:
        record = msgspec.json.decode(line)
        del record["time"]
    except (msgspec.DecodeError, KeyError, TypeError):
        return None
    return record
