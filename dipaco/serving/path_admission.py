"""Waiting, in an event loop, until a path is in memory.

Modules are read here, in a thread for that alone, so a path that is not in memory delays only the
requests for it and for others that must be read: when the loop pins the path, it is there. Paths in
memory are admitted at once while another is read; they wait only for one that has found no room.
"""

import asyncio
import concurrent.futures
import contextlib
import time
from collections.abc import AsyncGenerator

from dipaco.serving.engine import PathStore
from dipaco.serving.errors import NoRoomForPath
from dipaco.serving.path_cache import Modules

STARVED_SECONDS = 1.0  # that a path may wait for memory while requests for cached paths come in
RETRY_SECONDS = 0.05  # between tries to pin: the loop unpins a path a moment after its request


class PathAdmission:
    """One for all requests to a cache; used in one event loop only."""

    def __init__(self, cache: PathStore):
        self._cache = cache
        self._cold_turn = asyncio.Lock()  # paths that are not in memory: first come, first read
        self._waits_since: float | None = None  # for room, the path whose turn it is
        self._freed = asyncio.Event()
        # Requests that are gone leave nothing behind that holds a thread of others.
        self._reader = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="path-reader")

    @contextlib.asynccontextmanager
    async def pinned(self, modules: Modules) -> AsyncGenerator[None]:
        """Keeps a path in memory; waits until it fits.

        Raises:
          ObjectMissing, ObjectDamaged, PathCacheTooSmall: it cannot be served.
        """
        pin = await self._pin(modules)
        try:
            yield
        finally:
            pin.close()
            self._freed.set()

    async def _pin(self, modules: Modules) -> contextlib.ExitStack:
        cache = self._cache
        # A cached path is admitted at once, unless another path has waited too long for memory:
        # a few busy paths would starve the others.
        if cache.contains(modules) and not self._is_a_path_starved():
            pin = contextlib.ExitStack()
            with contextlib.suppress(NoRoomForPath):  # it was evicted just now
                pin.enter_context(cache.pin(modules))
                return pin
        async with self._cold_turn:
            began = time.monotonic()
            try:
                while True:
                    self._freed.clear()
                    if cache.fits(modules):
                        self._waits_since = None  # it is being read: others need not wait
                        with contextlib.suppress(NoRoomForPath):  # it was taken just now
                            return await self._pin_in_thread(modules)
                    self._waits_since = began
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._freed.wait(), RETRY_SECONDS)
            finally:
                self._waits_since = None

    async def _pin_in_thread(self, modules: Modules) -> contextlib.ExitStack:
        pin = contextlib.ExitStack()
        future = self._reader.submit(pin.enter_context, self._cache.pin(modules))
        reading = asyncio.wrap_future(future)
        try:
            await asyncio.shield(reading)
        except asyncio.CancelledError:  # the request is gone
            reading.add_done_callback(lambda done: done.cancelled() or done.exception())
            if not future.cancel():  # its thread still reads
                future.add_done_callback(lambda _: pin.close())
            raise
        return pin

    def _is_a_path_starved(self) -> bool:
        since = self._waits_since
        return since is not None and time.monotonic() - since > STARVED_SECONDS
