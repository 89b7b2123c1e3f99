"""Waiting, in an event loop, until a path is in memory.

Modules are read here, in threads for that alone, so a path that is not in memory delays only the
requests for it: when the loop pins the path, it is there. Requests get room in the order in which
they came, before anything of theirs is read, and their paths are read several at once. Paths in
memory are admitted at once; they wait only for one that has found no room for long.
"""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import time
from collections.abc import AsyncGenerator

from dipaco.serving.errors import NoRoomForPath
from dipaco.serving.path_cache import Modules, PathPin, PathStore

READERS = 4  # paths that are read at once; the cache may have memory for fewer
STARVED_SECONDS = 1.0  # that a path may wait for memory while requests for cached paths come in
RETRY_SECONDS = 0.05  # between tries to pin: the loop unpins a path a moment after its request


@dataclasses.dataclass(eq=False)
class _Waiting:
    """A request that has no room yet."""

    modules: Modules
    pin: asyncio.Future[PathPin]
    without_room_since: float | None = None  # when it was first refused


@dataclasses.dataclass(eq=False)
class _Reading:
    """A path that is read for some requests, in one thread."""

    job: concurrent.futures.Future[None]
    done: asyncio.Future[None]
    pin: PathPin
    num_requests: int = 0


class PathAdmission:
    """One for all requests to a cache; used in one event loop only."""

    def __init__(self, cache: PathStore):
        self._cache = cache
        self._waiting: list[_Waiting] = []  # the oldest first
        self._retry: asyncio.TimerHandle | None = None
        self._reading: dict[tuple[str, ...], _Reading] = {}  # by the digests of the modules
        # Requests that are gone leave nothing behind that holds a thread of others.
        self._readers = concurrent.futures.ThreadPoolExecutor(
            READERS, thread_name_prefix="path-reader"
        )

    @contextlib.asynccontextmanager
    async def pinned(self, modules: Modules, *, waits: bool = True) -> AsyncGenerator[None]:
        """Keeps a path in memory; waits until it fits.

        Args:
          modules: of the path.
          waits: False: not for room.

        Raises:
          ObjectMissing, ObjectDamaged, PathCacheTooSmall: it cannot be served.
          NoRoomForPath: it does not fit now, and is not waited for.
        """
        pin = await self._pin(modules, waits)
        try:
            yield
        finally:
            pin.close()
            self._give_room()

    async def _pin(self, modules: Modules, waits: bool) -> PathPin:
        while True:
            pin = await self._room(modules) if waits else self._cache.reserve(modules)
            try:
                if not self._cache.contains(modules):
                    await self._read(modules)
                pin.read()  # at once: it is there
                return pin
            except BaseException as error:
                pin.close()
                self._give_room()
                if not waits or not isinstance(error, NoRoomForPath):
                    raise
            await asyncio.sleep(RETRY_SECONDS)  # in memory it takes more than on disk

    async def _room(self, modules: Modules) -> PathPin:
        waiting = _Waiting(modules, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._give_room()
        try:
            return await waiting.pin
        except asyncio.CancelledError:
            if waiting.pin.done() and not waiting.pin.cancelled():
                waiting.pin.result().close()
            raise
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
            self._set_timer()

    def _give_room(self) -> None:
        """Pins paths for those that wait, as far as there is room."""
        now, still_waiting = time.monotonic(), []
        refused: dict[int, _Waiting] = {}  # the first of each memory that has no room
        for each in self._waiting:
            if each.pin.done():
                continue
            memory = self._cache.memory_of(each.modules)
            first = refused.get(memory)
            # Those whose path needs no room go on, or else after it: they would starve it.
            if first and (_is_starved(first, now) or not self._cache.has_room(each.modules)):
                still_waiting.append(each)
                continue
            try:
                each.pin.set_result(self._cache.reserve(each.modules))
            except NoRoomForPath:
                refused.setdefault(memory, each)
                each.without_room_since = each.without_room_since or now
                still_waiting.append(each)
            except Exception as error:
                each.pin.set_exception(error)
        self._waiting = still_waiting
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

    async def _read(self, modules: Modules) -> None:
        """Reads a path that its caller has pinned; requests for the same one wait together."""
        key = tuple(receipt.digest for receipt in modules.values())
        if key not in self._reading:
            pin = self._cache.reserve(modules)
            job = self._readers.submit(_read_and_close, pin)
            done = asyncio.wrap_future(job)
            done.add_done_callback(lambda done: self._end_reading(key, done))
            self._reading[key] = _Reading(job, done, pin)
        reading = self._reading[key]
        reading.num_requests += 1
        try:
            await asyncio.shield(reading.done)
        finally:
            reading.num_requests -= 1
            if not reading.num_requests and reading.job.cancel():  # its thread has not begun
                reading.pin.close()
                self._reading.pop(key, None)

    def _end_reading(self, key: tuple[str, ...], done: asyncio.Future[None]) -> None:
        if not done.cancelled():
            done.exception()  # after the last request is gone, it is of no interest
            self._reading.pop(key, None)
            self._give_room()


def _is_starved(waiting: _Waiting, now: float) -> bool:
    since = waiting.without_room_since
    return since is not None and now - since > STARVED_SECONDS


def _read_and_close(pin: PathPin) -> None:
    try:
        pin.read()
    finally:
        pin.close()
