"""Requests that wait for a row: first come, first served within a path, and paths take turns.

The path with the fewest active rows is served next, so a flood for one path does not starve
the others. Not thread-safe: the loop holds its lock.
"""

import collections
from collections.abc import Iterator, Mapping, Set

from dipaco.serving.decoding.stream import Stream

PathKey = tuple[str, int]  # (release, path)


class WaitingRequests:
    """One queue for each path."""

    def __init__(self):
        self._queues: dict[PathKey, collections.deque[Stream]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def put(self, stream: Stream) -> None:
        """At the end of its path's queue."""
        self._queues.setdefault(key_of(stream), collections.deque()).append(stream)

    def put_back(self, stream: Stream) -> None:
        """At the head of its path's queue: it was taken and could not begin."""
        self._queues.setdefault(key_of(stream), collections.deque()).appendleft(stream)

    def next(
        self, active_rows: Mapping[PathKey, int], max_rows: int, blocked: Set[PathKey]
    ) -> Stream | None:
        """Takes out the next stream.

        Args:
          active_rows: by path; a missing path has none.
          max_rows: a path with as many gets no more.
          blocked: paths that cannot begin now.
        """
        ready = [key for key in self._queues.keys() - blocked if active_rows.get(key, 0) < max_rows]
        if not ready:
            return None
        key = min(ready, key=lambda key: (active_rows.get(key, 0), self._waits_since(key)))
        return self._remove(key, 0)

    def take_cancelled(self) -> Iterator[Stream]:
        """Takes out the streams that were cancelled."""
        for key in list(self._queues):
            for index in reversed(range(len(self._queues[key]))):
                if self._queues[key][index].is_cancelled:
                    yield self._remove(key, index)

    def take_all(self) -> list[Stream]:
        """Takes out every stream."""
        streams = [stream for queue in self._queues.values() for stream in queue]
        self._queues.clear()
        return streams

    def _waits_since(self, key: PathKey) -> float:
        return self._queues[key][0].submitted_seconds

    def _remove(self, key: PathKey, index: int) -> Stream:
        queue = self._queues[key]
        stream = queue[index]
        del queue[index]
        if not queue:
            del self._queues[key]
        return stream


def key_of(stream: Stream) -> PathKey:
    return stream.request.release, stream.request.path
