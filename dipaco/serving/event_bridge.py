"""Items from other threads into an event loop, with one wake-up for all that have gathered.

One `call_soon_threadsafe` for each token of 200 streams would keep both threads busy with wake-ups.
"""

import asyncio
import collections
import contextlib
from typing import Generic, TypeVar

Item = TypeVar("Item")


class EventBridge(Generic[Item]):
    """Created and read in the event loop; written by any thread."""

    def __init__(self) -> None:
        self._event_loop = asyncio.get_running_loop()
        self._ready = asyncio.Event()
        self._items: collections.deque[Item] = collections.deque()
        self._is_wake_up_scheduled = False

    def put(self, item: Item) -> None:
        """Any thread."""
        self._items.append(item)
        if not self._is_wake_up_scheduled:
            self._is_wake_up_scheduled = True
            with contextlib.suppress(RuntimeError):  # the event loop is closed: no reader is left
                self._event_loop.call_soon_threadsafe(self._ready.set)

    async def take(self) -> list[Item]:
        """All items so far, in order; waits until there is one."""
        await self._ready.wait()
        # In this order: an item put from here on is either taken below or schedules a new wake-up.
        self._ready.clear()
        self._is_wake_up_scheduled = False
        return [self._items.popleft() for _ in range(len(self._items))]
