"""Requests on their way into a loop: any thread puts them in, the loop's thread takes them out.

The client with the fewest active rows is served next, and of its requests one for the path with the
fewest: a flood by one client, or for one path, does not starve the others.
"""

import math
import threading
import time
from collections.abc import Callable, Mapping, Set
from typing import Protocol

from dipaco.serving.decoding.stream import PathKey, Stream, key_of
from dipaco.serving.errors import LoopStopping
from dipaco.serving.fairness import FairQueue

RECHECK_SECONDS = 0.05  # a request that waits for a path hears of no pin that is released

LineKey = tuple[str, PathKey]  # (client, path)


class Shares(Protocol):
    """The active rows, as `fairness.RowShares` counts them."""

    @property
    def by_path(self) -> Mapping[PathKey, int]: ...  # a missing path has none

    @property
    def by_client(self) -> Mapping[str, int]: ...

    def may_begin(self, client: str, key: PathKey) -> bool:
        """True if a request of a client for a path may begin now."""
        ...


def line_of(stream: Stream) -> LineKey:
    """The line of a fair queue in which a request waits."""
    return stream.request.client, key_of(stream)


def rows_held(
    shares: Shares, blocked: Set[PathKey] = frozenset()
) -> Callable[[LineKey, Stream], tuple[int, int] | None]:
    """A function for the queue: a line of requests holds its client's active rows, then its path's.

    Args:
      shares: which rows are active, and which requests may get one.
    """

    def held(line: LineKey, first: Stream) -> tuple[int, int] | None:
        client, key = line
        if key in blocked or not shares.may_begin(client, key):
            return None
        return shares.by_client.get(client, 0), shares.by_path.get(key, 0)

    return held


class RequestQueue:
    """Thread-safe."""

    def __init__(self):
        self._changed = threading.Condition()  # Guards the fields below.
        self._waiting: FairQueue[LineKey, Stream] = FairQueue()
        self._is_stopping = False
        # Monotonic. Requests that are active after it are cancelled.
        self._deadline_seconds = math.inf

    def __len__(self) -> int:
        """Number of waiting requests."""
        with self._changed:
            return len(self._waiting)

    def put(self, stream: Stream) -> None:
        """Adds a new request. Raises `LoopStopping` if no more are taken."""
        with self._changed:
            if self._is_stopping:
                raise LoopStopping()
            self._waiting.put(line_of(stream), stream)
            self._changed.notify_all()

    def put_back(self, stream: Stream) -> None:
        """Adds a request that was taken, and could not begin or go on, at the head of its line."""
        with self._changed:
            self._waiting.put_back(line_of(stream), stream)

    def next(self, shares: Shares, blocked: Set[PathKey]) -> Stream | None:
        """Takes out the request that begins next. The arguments are the same as for `rows_held`."""
        with self._changed:
            return self._waiting.next(rows_held(shares, blocked))

    def take_cancelled(self) -> list[Stream]:
        """Takes out the cancelled ones."""
        with self._changed:
            return self._take([stream for stream in self._waiting if stream.is_cancelled])

    def take_all(self) -> list[Stream]:
        """Takes out all that wait."""
        with self._changed:
            return self._take(list(self._waiting))

    def _take(self, streams: list[Stream]) -> list[Stream]:
        for stream in streams:
            self._waiting.remove(line_of(stream), stream)
        return streams

    def stop(self, drain_seconds: float) -> None:
        """Takes no more. The loop ends when it has finished its requests, or after so long."""
        with self._changed:
            self._is_stopping = True
            self._deadline_seconds = time.monotonic() + drain_seconds
            self._changed.notify_all()

    def wait_for_work(
        self, *, has_rows: bool, did_something: bool, idle_seconds: float | None = None
    ) -> bool:
        """Returns when the loop should run another iteration. False = it should end.

        Args:
          did_something: True if its last iteration did anything.
          idle_seconds: the longest wait if there is nothing to do. None = no limit.
        """
        with self._changed:
            is_idle = not has_rows and not self._waiting
            if self._is_stopping and (is_idle or time.monotonic() > self._deadline_seconds):
                return False
            if not did_something:
                self._changed.wait(timeout=idle_seconds if is_idle else RECHECK_SECONDS)
            return True
