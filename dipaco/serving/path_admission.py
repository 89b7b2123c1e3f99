"""Waiting, in an event loop, until a path is in memory.

Modules are read here, in threads for that alone, so a path that is not in memory delays only the
requests for it: when the loop pins the path, it is there. Clients get room in turn, before anything
of theirs is read, and their paths are read several at once. Paths in memory are admitted at once;
they wait only for one before them in turn that has found no room for long: not for one of a client
that has more paths in use.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator

from dipaco.serving.errors import NoRoomForPath
from dipaco.serving.path_cache import Modules, PathPin, PathStore
from dipaco.serving.path_reads import PathReads
from dipaco.serving.path_turns import PathTurns, RoomRequest

STARVED_SECONDS = 1.0  # that a path may wait for memory while requests for cached paths come in
RETRY_SECONDS = 0.05  # between tries to pin: the loop unpins a path a moment after its request


class PathAdmission:
    """One for all requests to a cache; used in one event loop only."""

    def __init__(self, cache: PathStore):
        self._cache = cache
        self._waiting = PathTurns()
        self._retry: asyncio.TimerHandle | None = None
        self._reads = PathReads(cache, self._give_room)

    @contextlib.asynccontextmanager
    async def pinned(
        self, modules: Modules, client: str, *, waits: bool = True
    ) -> AsyncGenerator[None]:
        """Keeps a path in memory; waits until it fits.

        Args:
          modules: of the path.
          client: who asks.
          waits: False: not for room.

        Raises:
          ObjectMissing, ObjectDamaged, PathCacheTooSmall: it cannot be served.
          NoRoomForPath: it does not fit now, and is not waited for.
        """
        self._cache.count_lookup(modules)
        pin = await self._pin(modules, client, waits)
        try:
            yield
        finally:
            pin.close()
            self._give_room()

    async def _pin(self, modules: Modules, client: str, waits: bool) -> PathPin:
        while True:
            pin = await self._room(modules, client) if waits else self._reserve(modules, client)
            try:
                if not self._cache.contains(modules):
                    await self._reads.read(modules, client)
                pin.read()  # at once: it is there
                return pin
            except BaseException as error:
                pin.close()
                self._give_room()
                if not waits or not isinstance(error, NoRoomForPath):
                    raise
            await asyncio.sleep(RETRY_SECONDS)  # in memory it takes more than on disk

    def _reserve(self, modules: Modules, client: str) -> PathPin:
        """As the cache's, and counted for the client until it is closed."""
        memory, key = self._cache.memory_of(modules), tuple(r.digest for r in modules.values())
        pin = self._cache.reserve(modules)
        self._waiting.take(client, memory, key)

        def close() -> None:
            pin.close()
            self._waiting.give_back(client, memory, key)

        return PathPin(pin.read, close)

    async def _room(self, modules: Modules, client: str) -> PathPin:
        pin = asyncio.get_running_loop().create_future()
        request = RoomRequest(client, modules, self._cache.memory_of(modules), pin)
        self._waiting.add(request)
        self._give_room()
        try:
            return await pin
        except asyncio.CancelledError:
            if pin.done() and not pin.cancelled():
                pin.result().close()
            raise
        finally:
            self._waiting.remove(request)
            self._set_timer()

    def _give_room(self) -> None:
        """Pins paths for those that wait, as far as there is room."""
        now = time.monotonic()
        # Memories in which one that is before the next has no room, or has had none for long.
        without_room: set[int] = set()
        starved: set[int] = set()
        for request in self._waiting.in_order():
            memory = request.memory
            if request.pin.done() or memory in starved:
                continue
            # Those whose path needs no room go on, or else after it: they would starve it.
            if memory not in without_room or self._cache.has_room(request.modules):
                try:
                    request.pin.set_result(self._reserve(request.modules, request.client))
                except NoRoomForPath:
                    request.without_room_since = request.without_room_since or now
                except Exception as error:
                    request.pin.set_exception(error)
            if request.pin.done():
                self._waiting.remove(request)
            else:
                without_room.add(memory)
                if _is_starved(request, now):
                    starved.add(memory)
        self._set_timer()

    def _set_timer(self) -> None:
        if self._waiting and self._retry is None:
            loop = asyncio.get_running_loop()
            self._retry = loop.call_later(RETRY_SECONDS, self._try_again)
        elif not self._waiting and self._retry is not None:
            self._retry.cancel()
            self._retry = None

    def _try_again(self) -> None:
        self._retry = None
        self._give_room()


def _is_starved(request: RoomRequest, now: float) -> bool:
    since = request.without_room_since
    return since is not None and now - since > STARVED_SECONDS
