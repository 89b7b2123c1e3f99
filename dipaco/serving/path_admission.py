"""Waiting until a path is in memory, in an event loop.

Modules are read here, in threads of ours, so that a path that is not in memory holds up nobody but
those who want it: when the loop asks for the path, it is there.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator

from dipaco.serving.engine import PathStore
from dipaco.serving.errors import NoRoomForPath
from dipaco.serving.path_cache import Modules

PATIENCE_SECONDS = 1.0  # that one path may wait for room while others go on coming in
LOOK_AGAIN_SECONDS = 0.05  # the loop lets go of a path a moment after we do


class PathAdmission:
    """One for all requests to a cache; used in one event loop only."""

    def __init__(self, cache: PathStore):
        self._cache = cache
        self._turn = asyncio.Lock()  # of those whose path is not in memory: first come, first read
        self._waits_since: float | None = None  # the one whose turn it is, for room
        self._freed = asyncio.Event()

    @contextlib.asynccontextmanager
    async def holding(self, modules: Modules) -> AsyncGenerator[None]:
        """Keeps a path in memory; waits until there is room for it.

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
        # A path that is in memory comes in at once, unless somebody has been waiting for room: a
        # busy few would keep the others out for ever.
        if cache.contains(modules) and not self._is_somebody_impatient():
            pin = contextlib.ExitStack()
            with contextlib.suppress(NoRoomForPath):  # another has taken its place just now
                pin.enter_context(cache.pin(modules))
                return pin
        async with self._turn:
            self._waits_since = time.monotonic()
            try:
                while True:
                    self._freed.clear()
                    try:
                        return await self._pin_in_a_thread(modules)
                    except NoRoomForPath:
                        with contextlib.suppress(TimeoutError):
                            await asyncio.wait_for(self._freed.wait(), LOOK_AGAIN_SECONDS)
            finally:
                self._waits_since = None

    async def _pin_in_a_thread(self, modules: Modules) -> contextlib.ExitStack:
        pin = contextlib.ExitStack()
        context = self._cache.pin(modules)
        reading = asyncio.get_running_loop().run_in_executor(None, pin.enter_context, context)
        try:
            await asyncio.shield(reading)
        except asyncio.CancelledError:  # whoever wanted it has left; the thread is still at it
            reading.add_done_callback(lambda done: (done.exception(), pin.close()))
            raise
        return pin

    def _is_somebody_impatient(self) -> bool:
        since = self._waits_since
        return since is not None and time.monotonic() - since > PATIENCE_SECONDS
