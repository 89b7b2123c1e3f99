"""Prints the events of a run's workers from the lines that they append to its event file.

Workers on other machines append to files there. Their steps are read from the ledger.
"""

import time
from collections.abc import Sequence
from typing import Any

from dipaco.observe.events import Event
from dipaco.observe.progress import Progress
from dipaco.observe.writers import Closing, EventFileReader
from dipaco.runs.reading.events import terminal_line, trackers_of
from dipaco.runs.reading.progress import progress_of
from dipaco.runs.run import Run

LEDGER_SECONDS = 30.0  # time between two reads of the ledger


class EventTailer(Closing):
    """One bar for the whole run, and a line for every event."""

    def __init__(self, run: Run, *, trackers: Sequence[str] = ()):
        done, total = progress_of(run)
        self._run, self._done = run, done
        self._ledger_seconds = time.monotonic()
        self._events = EventFileReader(run.layout.events)
        self._trackers = trackers_of(run, trackers, lambda line: self._bar.say(line))
        self._bar = Progress("training", total, done_steps=done)
        self._bar.begin("all workers")

    def close(self) -> None:
        self.look()
        self._trackers.close()
        self._bar.close()

    def look(self) -> None:
        """Shows the events since the last call."""
        for event in self._events.new():
            self.show(event)
            self._trackers.write(event)
            if event.name == "path_trained":
                fields: dict[str, Any] = dict(event.fields)
                self._done += fields["steps"]
                self._bar.advance(
                    fields["steps"],
                    tokens=fields["tokens"],
                    bytes_sent=round(fields["megabytes_exchanged"] * 1e6),
                    loss=fields["loss"],
                )

        is_late = time.monotonic() - self._ledger_seconds > LEDGER_SECONDS
        # All workers of a folder share one event file. Only a run in a bucket has other workers.
        if is_late and self._run.address.url is not None:
            self._ledger_seconds = time.monotonic()
            done, _ = progress_of(self._run)
            if done > self._done:
                self._bar.advance(done - self._done)
                self._done = done

    def show(self, event: Event) -> None:
        self._bar.say(terminal_line(event, self._run.ledger))
