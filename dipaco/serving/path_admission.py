"""Waiting, in an event loop, until a path is in memory.

Modules are read here, in executor threads, so a path that is not in memory delays only the requests
for it: when the loop pins the path, it is there.
"""

import asyncio
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
        self._waits_since: float | None = None  # of the path whose turn it is
        self._freed = asyncio.Event()

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
            self._waits_since = time.monotonic()
            try:
                while True:
                    self._freed.clear()
                    try:
                        return await self._pin_in_thread(modules)
                    except NoRoomForPath:
                        with contextlib.suppress(TimeoutError):
                            await asyncio.wait_for(self._freed.wait(), RETRY_SECONDS)
            finally:
                self._waits_since = None

    async def _pin_in_thread(self, modules: Modules) -> contextlib.ExitStack:
        pin = contextlib.ExitStack()
        context = self._cache.pin(modules)
        reading = asyncio.get_running_loop().run_in_executor(None, pin.enter_context, context)
        try:
            await asyncio.shield(reading)
        except asyncio.CancelledError:  # the request is gone, but its thread still reads
            reading.add_done_callback(lambda done: (done.exception(), pin.close()))
            raise
        return pin

    def _is_a_path_starved(self) -> bool:
        since = self._waits_since
        return since is not None and time.monotonic() - since > STARVED_SECONDS
