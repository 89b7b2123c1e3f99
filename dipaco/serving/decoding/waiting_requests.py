"""Requests that wait for a row: clients take turns, then paths, and within both the first comes
first.

The client with the fewest active rows is served next, and of its requests one for the path with the
fewest: a flood by one client, or for one path, does not starve the others. Not thread-safe: the
loop holds its lock.
"""

import collections
from collections.abc import Iterator, Mapping, Set
from typing import Protocol

from dipaco.serving.decoding.stream import Stream

PathKey = tuple[str, int]  # (release, path)
QueueKey = tuple[str, PathKey]  # (client, path)


class Shares(Protocol):
    """The active rows, as `fairness.RowShares` counts them."""

    @property
    def by_path(self) -> Mapping[PathKey, int]: ...  # a missing path has none

    @property
    def by_client(self) -> Mapping[str, int]: ...

    def may_begin(self, client: str, key: PathKey) -> bool:
        """Whether a request of a client for a path may begin now."""
        ...


class WaitingRequests:
    """One queue for each path of each client."""

    def __init__(self):
        self._queues: dict[QueueKey, collections.deque[Stream]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def put(self, stream: Stream) -> None:
        """At the end of its queue."""
        self._queue_of(stream).append(stream)

    def put_back(self, stream: Stream) -> None:
        """At the head of its queue: it was taken, and could not begin or go on."""
        self._queue_of(stream).appendleft(stream)

    def next(self, shares: Shares, blocked: Set[PathKey]) -> Stream | None:
        """Takes out the next stream.

        Args:
          shares: which rows are active, and which requests may get one.
          blocked: paths that cannot begin now.
        """
        ready = [
            (client, key)
            for client, key in self._queues
            if key not in blocked and shares.may_begin(client, key)
        ]
        if not ready:
            return None

        def rank(place: QueueKey) -> tuple[int, int, float]:
            client, key = place
            rows = shares.by_client.get(client, 0), shares.by_path.get(key, 0)
            return *rows, self._queues[place][0].submitted_seconds

        return self._remove(min(ready, key=rank), 0)

    def take_cancelled(self) -> Iterator[Stream]:
        """Takes out the streams that were cancelled."""
        for key in list(self._queues):
            for index in reversed(range(len(self._queues[key]))):
                if self._queues[key][index].is_cancelled:
                    yield self._remove(key, index)

    def take(self, stream: Stream) -> bool:
        """Takes out one stream; returns whether it waited."""
        place = stream.request.client, key_of(stream)
        if stream not in (queue := self._queues.get(place, ())):
            return False
        self._remove(place, queue.index(stream))
        return True

    def take_all(self) -> list[Stream]:
        """Takes out every stream."""
        streams = [stream for queue in self._queues.values() for stream in queue]
        self._queues.clear()
        return streams

    def _queue_of(self, stream: Stream) -> collections.deque[Stream]:
        place = stream.request.client, key_of(stream)
        return self._queues.setdefault(place, collections.deque())

    def _remove(self, place: QueueKey, index: int) -> Stream:
        queue = self._queues[place]
        stream = queue[index]
        del queue[index]
        if not queue:
            del self._queues[place]
        return stream


def key_of(stream: Stream) -> PathKey:
    return stream.request.release, stream.request.path
