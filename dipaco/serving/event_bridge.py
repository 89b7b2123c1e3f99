"""What the loop's thread has to tell, into the event loop: one wake-up for all that has gathered.

`call_soon_threadsafe` for each token of 200 streams would keep both threads busy with each other.
"""

import asyncio
import collections
import contextlib
from typing import Generic, TypeVar

Item = TypeVar("Item")


class EventBridge(Generic[Item]):
    """Made, and read, in the event loop."""

    def __init__(self) -> None:
        self._events = asyncio.get_running_loop()
        self._ready = asyncio.Event()
        self._items: collections.deque[Item] = collections.deque()
        self._is_told = False

    def put(self, item: Item) -> None:
        """Any thread."""
        self._items.append(item)
        if not self._is_told:
            self._is_told = True
            with contextlib.suppress(RuntimeError):  # the event loop is closed: nobody listens
                self._events.call_soon_threadsafe(self._ready.set)

    async def take(self) -> list[Item]:
        """What has come since, in order; waits until there is something."""
        await self._ready.wait()
        # In this order: what is put from here on either is seen below, or wakes us again.
        self._ready.clear()
        self._is_told = False
        return [self._items.popleft() for _ in range(len(self._items))]
