"""Requests on their way into a loop: any thread puts them in, the loop's thread takes them out.

It counts what each client has in the loop, waiting and active, and knows when the loop is to end.
"""

import math
import threading
import time
from collections.abc import Callable, Set

from dipaco.serving.decoding.fairness import ClientPlaces
from dipaco.serving.decoding.stream import Stream
from dipaco.serving.decoding.waiting_requests import PathKey, Shares, WaitingRequests
from dipaco.serving.errors import LoopStopping, QueueFull

RECHECK_SECONDS = 0.05  # a request that waits for a path hears of no pin that is released


class RequestQueue:
    """Thread-safe."""

    def __init__(self):
        self._changed = threading.Condition()  # of all below
        self._waiting = WaitingRequests()
        self._places = ClientPlaces()
        self._is_stopping = False
        self._deadline_seconds = math.inf  # monotonic; what is active after it is cancelled

    def __len__(self) -> int:
        """How many wait."""
        with self._changed:
            return len(self._waiting)

    def put(
        self, stream: Stream, places: int | None, seconds_until_served: Callable[[int], int]
    ) -> None:
        """Adds a new request.

        Args:
          stream: of the request.
          places: for requests of all clients, waiting and active; None: it has one already.
          seconds_until_served: from the number that wait.

        Raises:
          QueueFull, LoopStopping: it takes no more.
        """
        with self._changed:
            if self._is_stopping:
                raise LoopStopping()
            if not self._places.take(stream.request.client, 1, places):
                number = len(self._waiting)
                seconds = seconds_until_served(number)
                raise QueueFull(waiting=number, retry_after_seconds=seconds)
            self._waiting.put(stream)
            self._changed.notify_all()

    def put_back(self, stream: Stream) -> None:
        """At the head of its queue: it was taken, and could not begin or go on."""
        with self._changed:
            self._waiting.put_back(stream)

    def next(self, shares: Shares, blocked: Set[PathKey]) -> Stream | None:
        """As `WaitingRequests.next`."""
        with self._changed:
            return self._waiting.next(shares, blocked)

    def end(self, stream: Stream) -> None:
        """A request that was put in is over."""
        with self._changed:
            self._places.give_back(stream.request.client)

    def take_cancelled(self) -> list[Stream]:
        """Takes out those that were cancelled."""
        with self._changed:
            return list(self._waiting.take_cancelled())

    def take_all(self) -> list[Stream]:
        """Takes out all that wait."""
        with self._changed:
            return self._waiting.take_all()

    def stop(self, drain_seconds: float) -> None:
        """Takes no more; the loop ends when it has finished those it has, or after so long."""
        with self._changed:
            self._is_stopping = True
            self._deadline_seconds = time.monotonic() + drain_seconds
            self._changed.notify_all()

    def wait_for_work(
        self, *, has_rows: bool, did_something: bool, idle_seconds: float | None = None
    ) -> bool:
        """Returns when the loop should take another turn; False = it should end.

        Args:
          has_rows: whether rows are active.
          did_something: whether its last turn did.
          idle_seconds: the longest wait where there is nothing to do; None = without limit.
        """
        with self._changed:
            is_idle = not has_rows and not self._waiting
            if self._is_stopping and (is_idle or time.monotonic() > self._deadline_seconds):
                return False
            if not did_something:
                self._changed.wait(timeout=idle_seconds if is_idle else RECHECK_SECONDS)
            return True
