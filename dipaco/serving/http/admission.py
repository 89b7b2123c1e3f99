"""Who comes in: a bounded number at once, and each waits until its path is in memory.

Modules are read here, in threads of ours, so that a path that is not in memory holds up nobody but
those who want it: when the loop asks for the path, it is there.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Generator

from dipaco.errors import NoRoomForPath, QueueFull
from dipaco.serving.http.refusals import Refusal
from dipaco.serving.path_cache import Modules
from dipaco.serving.releases import Served
from dipaco.serving.service import Service

PATIENCE_SECONDS = 1.0  # that one path may wait for room while others go on coming in
LOOK_AGAIN_SECONDS = 0.05  # the loop lets go of a path a moment after we do


class Admission:
    """One for all requests of a service; used in the event loop only."""

    def __init__(self, service: Service):
        self._service = service
        limits = service.settings.limits
        self.most = limits.rows + limits.waiting
        self.num_inside = 0
        self._turn = asyncio.Lock()  # of those whose path is not in memory: first come, first read
        self._waits_since: float | None = None  # the one whose turn it is, for room
        self._freed = asyncio.Event()

    @contextlib.contextmanager
    def inside(self, num_choices: int) -> Generator[None]:
        """Counts the choices of a request while it lasts. Raises `QueueFull`."""
        if self.num_inside + num_choices > self.most:
            raise QueueFull(waiting=self.num_inside, retry_after_seconds=1)
        self.num_inside += num_choices
        try:
            yield
        finally:
            self.num_inside -= num_choices

    @contextlib.asynccontextmanager
    async def holding(self, served: Served, path: int) -> AsyncGenerator[None]:
        """Keeps a path in memory; waits until there is room for it.

        Raises:
          Refusal: it cannot be served, for a reason that is known already.
          ObjectMissing, ObjectDamaged, PathCacheTooSmall: one that shows now.
        """
        if problem := self._service.problem_of(served, path):
            raise Refusal(503, problem, param="path", code="path_not_whole")
        pin = await self._pin(served.modules_of(path))
        try:
            yield
        finally:
            pin.close()
            self._freed.set()

    async def _pin(self, modules: Modules) -> contextlib.ExitStack:
        cache = self._service.cache
        # A path that is in memory comes in at once, unless somebody has been waiting for room: a
        # busy few would keep the others out for ever.
        if cache.holds(modules) and not self._is_somebody_impatient():
            pin = contextlib.ExitStack()
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
        context = self._service.cache.pin(modules)
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
