"""Waiting, in an event loop, until a path is in memory.

Modules are read here, in separate threads, so a path that is not in memory delays only the requests
for it: when the loop pins the path, it is there. Clients get room through a `FairQueue`, before
anything of theirs is read: the client with the fewest paths in use is next, and its turn ends when
it gives a path back. Paths are read several at once.

Paths in memory are admitted at once. They wait only for a request before them in the order that has
found no room for long, never for a client that has more paths in use.
"""

import asyncio
import collections
import contextlib
import dataclasses
import functools
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator

from dipaco.serving.errors import NoRoomForPath, PathNotWhole
from dipaco.serving.fairness import FairQueue, FairThreads
from dipaco.serving.path_cache import Modules, PathCache, PathDigests, PathPin, digests_of

# Paths that are read at once. Each holds a thread while it waits for the disk or the bucket. The
# cache may have memory for fewer.
READERS = 4
# Time that a path may wait for memory while requests for cached paths come in.
STARVED_SECONDS = 1.0
RETRY_SECONDS = 0.05  # between tries to pin: the loop unpins a path a moment after its request


@dataclasses.dataclass(eq=False)
class _RoomRequest:
    """A request that waits for room for a path."""

    client: str
    modules: Modules
    pin: asyncio.Future[PathPin]
    without_room_since: float | None = None  # When it was first refused.


class PathAdmission:
    """One for all requests to a cache, used in one event loop only. `known_problem` says why a
    path's modules could not be read lately, if so.
    """

    def __init__(
        self,
        cache: PathCache,
        known_problem: Callable[[Modules], str | None] = lambda modules: None,
    ):
        self.cache, self._known_problem = cache, known_problem
        self._waiting: FairQueue[str, _RoomRequest] = FairQueue()
        # client -> how often it has each path in use
        self._in_use: dict[str, collections.Counter[PathDigests]] = {}
        self._retry: asyncio.TimerHandle | None = None
        self._readers = FairThreads(READERS, "path-reader")

    @contextlib.asynccontextmanager
    async def pinned(self, modules: Modules, client: str) -> AsyncGenerator[None]:
        """Keeps a path in memory. Waits until it fits. Raises `ObjectMissing`, `ObjectDamaged` or
        `PathCacheTooSmall`: it cannot be served.
        """
        if problem := self.problem_of(modules):
            raise PathNotWhole(problem=problem)
        self.cache.count_lookup(modules)
        pin = await self._pin(modules, client)
        try:
            yield
        finally:
            pin.close()
            self._give_room()

    def problem_of(self, modules: Modules) -> str | None:
        """The known reason why a path cannot be served, if any. One in memory can be."""
        problem = self._known_problem(modules)
        return None if problem and self.cache.contains(modules) else problem

    async def _pin(self, modules: Modules, client: str) -> PathPin:
        while True:
            pin = await self._room(modules, client)
            try:
                if not self.cache.contains(modules):
                    # It goes on when its requests are gone, and so has a pin of its own.
                    read = functools.partial(self.cache.preload, modules)
                    await self._readers.run_shared(client, digests_of(modules), read)
                pin.read()  # immediate: it is there
                return pin
            except BaseException as error:
                pin.close()
                self._give_room()
                if not isinstance(error, NoRoomForPath):
                    raise
            await asyncio.sleep(RETRY_SECONDS)  # a path takes more in memory than on disk

    def _reserve(self, modules: Modules, client: str) -> PathPin:
        """Reserves room in the cache, and counts the path for the client until it is closed."""
        path, pin = digests_of(modules), self.cache.reserve(modules)
        in_use = self._in_use.setdefault(client, collections.Counter())
        in_use[path] += 1

        def close() -> None:
            pin.close()
            in_use[path] -= 1
            if not +in_use:
                self._in_use.pop(client, None)
            self._waiting.end_turn(client)

        return PathPin(pin.read, close)

    async def _room(self, modules: Modules, client: str) -> PathPin:
        pin = asyncio.get_running_loop().create_future()
        request = _RoomRequest(client, modules, pin)
        self._waiting.put(client, request)
        self._give_room()
        try:
            return await pin
        except asyncio.CancelledError:
            if pin.done() and not pin.cancelled():
                pin.result().close()
            raise
        finally:
            self._waiting.remove(client, request)
            self._set_timer()

    def _give_room(self) -> None:
        """Pins paths for waiting requests, while there is room."""
        now = time.monotonic()
        is_full = False  # one that is before the next has no room
        for request in self._waiting.in_order(self._held):
            if request.pin.done():
                continue
            if not is_full or self.cache.has_room(request.modules):
                try:
                    request.pin.set_result(self._reserve(request.modules, request.client))
                except NoRoomForPath:
                    request.without_room_since = request.without_room_since or now
                except Exception as error:
                    request.pin.set_exception(error)
            if request.pin.done():
                self._waiting.remove(request.client, request)
                continue
            is_full, since = True, request.without_room_since
            if since is not None and now - since > STARVED_SECONDS:
                break  # those whose path needs no room would starve it
        self._set_timer()

    def _held(self, client: str, requests: Iterable[_RoomRequest]) -> Iterator[int]:
        """The number of paths that a client has before each of its requests gets room."""
        paths = set(+self._in_use.get(client, collections.Counter()))
        for request in requests:
            yield len(paths)
            paths.add(digests_of(request.modules))

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
