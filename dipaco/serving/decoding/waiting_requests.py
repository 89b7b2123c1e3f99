"""Requests that wait for a row: first come, first served within a path, and paths take turns.

The path with the fewest rows alive is served next, so a flood for one path does not keep the others
waiting. Not thread-safe: the loop holds its lock.
"""

import collections
from collections.abc import Iterator, Mapping

from dipaco.serving.decoding.stream import Stream

PathKey = tuple[str, int]  # (release, path)


class WaitingRequests:
    """The queue, by path."""

    def __init__(self):
        self._streams: dict[PathKey, collections.deque[Stream]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._streams.values()))

    def put(self, stream: Stream) -> None:
        """At the end of its path's line."""
        self._streams.setdefault(key_of(stream), collections.deque()).append(stream)

    def put_back(self, stream: Stream) -> None:
        """At the head of its path's line: it was taken and could not begin."""
        self._streams.setdefault(key_of(stream), collections.deque()).appendleft(stream)

    def next(self, rows_of: Mapping[PathKey, int], most: int, but: set[PathKey]) -> Stream | None:
        """Takes out who is next.

        Args:
          rows_of: how many rows of each path are alive.
          most: a path with as many gets no more.
          but: paths that cannot begin now.
        """
        able = [key for key in self._streams.keys() - but if rows_of.get(key, 0) < most]
        if not able:
            return None
        key = min(able, key=lambda key: (rows_of.get(key, 0), self._since(key)))
        return self._remove(key, 0)

    def sweep(self) -> Iterator[Stream]:
        """Takes out those that were cancelled."""
        for key in list(self._streams):
            for index in reversed(range(len(self._streams[key]))):
                if self._streams[key][index].is_cancelled:
                    yield self._remove(key, index)

    def take_all(self) -> list[Stream]:
        """Takes out everybody."""
        streams = [stream for line in self._streams.values() for stream in line]
        self._streams.clear()
        return streams

    def _since(self, key: PathKey) -> float:
        return self._streams[key][0].submitted_seconds

    def _remove(self, key: PathKey, index: int) -> Stream:
        line = self._streams[key]
        stream = line[index]
        del line[index]
        if not line:
            del self._streams[key]
        return stream


def key_of(stream: Stream) -> PathKey:
    return stream.request.release, stream.request.path
