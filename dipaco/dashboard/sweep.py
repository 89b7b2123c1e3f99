"""A sweep on a page: its runs with state, progress and result, and its table.

The page asks again every few seconds. A finished run is read once.
"""

import contextlib
import json
import threading
from pathlib import Path
from typing import Any

from dipaco.config import MODULAR
from dipaco.dashboard.watcher import Watcher, mark_of
from dipaco.errors import DipacoError
from dipaco.runs.opening import reading
from dipaco.runs.reading.status import status_of
from dipaco.store.address import Address
from dipaco.store.layout import SweepLayout


def sweep_at(address: Address) -> SweepLayout | None:
    """The sweep of a folder, or None if it holds none. A sweep is never in a bucket."""
    layout = SweepLayout(address.folder)
    return layout if address.url is None and layout.sweep.exists() else None


class SweepWatcher:
    """Reads a sweep whenever a page asks, and watches the runs whose pages are open."""

    def __init__(self, layout: SweepLayout):
        self._layout = layout
        self._finished: dict[tuple[int, ...] | None, dict[str, Any]] = {}
        self._watchers: dict[Path, Watcher] = {}
        self._reading, self._starting = threading.Lock(), threading.Lock()

    def recording(self) -> bytes:
        """The sweep as JSON: its name, its runs, and the rows of its table."""
        with self._reading:
            runs = [self._run_of(Address(folder)) for folder in self._folders()]
        content: dict[str, Any] = {"sweep": self._layout.root.absolute().name, "reference": ""}
        for file in (self._layout.sweep, self._layout.table("json")):
            with contextlib.suppress(OSError, ValueError):  # No table precedes the first result.
                content |= json.loads(file.read_bytes())
        kept = {name: content.get(name, []) for name in ("sweep", "reference", "rows", "missing")}
        return json.dumps({**kept, "runs": runs}).encode()

    def _folders(self) -> list[Path]:
        return [run for run in self._layout.runs() if run.parents[1].name == "rows"]

    def _run_of(self, address: Address) -> dict[str, Any]:
        row, seed = address.folder.parts[-2:]
        mark = mark_of(address)
        if mark in self._finished:
            return self._finished[mark]
        run: dict[str, Any] = {"row": row, "seed": seed, "name": row, "is_finished": False}
        try:
            with reading(address) as opened:
                status = opened.ledger.look_at_one_moment(
                    lambda: status_of(opened, with_sizes=False)
                )
        except DipacoError as error:
            return {**run, "state": f"{type(error).__name__}: {error}"}
        scored = status["arms"][MODULAR]["evaluations"]
        run |= {
            "name": status["name"],
            "is_finished": status["finished"],
            "state": status["why"]["sentence"],
            "perplexity": scored[-1]["perplexity"] if scored else None,
            **status["progress"],
        }
        if run["is_finished"]:
            self._finished[mark] = run
        return run

    def watcher_of(self, row: str, seed: str) -> Watcher | None:
        """The watcher of a run, which begins with the first call. None if there is no such run."""
        with self._starting:
            for folder in self._folders():
                if folder.parts[-2:] == (row, seed):
                    if folder not in self._watchers:
                        self._watchers[folder] = Watcher(Address(folder), reads_at_once=False)
                        self._watchers[folder].start()
                    return self._watchers[folder]
        return None

    def start(self) -> None:
        """Reads nothing before a page asks."""

    def finish(self) -> None:
        """Ends the streams to pages, and the reading. A signal handler may call it."""
        for watcher in list(self._watchers.values()):
            watcher.finish()

    def stop(self) -> None:
        """Finishes and waits for all readers."""
        for watcher in list(self._watchers.values()):
            watcher.stop()
