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
import concurrent.futures
import contextlib
import dataclasses
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator

from dipaco.serving.errors import NoRoomForPath
from dipaco.serving.fairness import FairQueue, FairThreads
from dipaco.serving.path_cache import Modules, PathCache, PathDigests, PathPin, digests_of

# Paths that are read at once. Each holds a thread while it waits for the disk or the bucket. The
# cache may have memory for fewer.
READERS = 4


class PathReads:
    """One for all requests to a cache, used in one event loop only.

    Args:
      cache: receives the paths.
      on_end: called when a path has been read, or could not be.
    """

    def __init__(self, cache: PathCache, on_end: Callable[[], object]):
        self._cache, self._on_end = cache, on_end
        self._threads = FairThreads(READERS, "path-reader")
        self._reading: dict[PathDigests, _Read] = {}  # keys are the digests of the modules

    async def read(self, modules: Modules, client: str) -> None:
        """Reads a path that its caller has pinned. Raises what reading raises."""
        key = digests_of(modules)
        if key not in self._reading:
            self._reading[key] = _Read(self._cache.reserve(modules))
            self._reading[key].done.add_done_callback(lambda done: self._end(key, done))
        read = self._reading[key]
        if client not in read.turns and not read.is_begun:  # else it would spend one for nothing
            read.turns[client] = asyncio.ensure_future(self._threads.run(client, read.run))
        read.num_requests += 1
        try:
            await asyncio.shield(read.done)
        finally:
            read.num_requests -= 1
            if not read.num_requests and read.call_off():
                del self._reading[key]

    def _end(self, key: PathDigests, done: asyncio.Future[None]) -> None:
        if not done.cancelled():
            done.exception()  # after the last request is gone, it is of no interest
            del self._reading[key]
            self._on_end()


class _Read:
    """A path that is read for some requests, in one thread.

    Attributes:
      done: when it is read.
      turns: of the clients that wait for it. The first that comes begins it. The others are
        cancelled, so that their clients keep them for other paths.
      num_requests: requests that wait for it.
    """

    def __init__(self, pin: PathPin):
        self._pin = pin
        self._job: concurrent.futures.Future[None] = concurrent.futures.Future()
        # Taken by the thread that begins it or the loop that calls it off, and never released.
        self._taken = threading.Lock()
        self.done = asyncio.wrap_future(self._job)
        self.turns: dict[str, asyncio.Task[None]] = {}
        self.num_requests = 0

    @property
    def is_begun(self) -> bool:
        return self._taken.locked()

    def run(self) -> None:
        """Runs in a thread."""
        if not self._take():
            return
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            self.done.get_loop().call_soon_threadsafe(self._cancel_turns)
        problem: BaseException | None = None
        try:
            self._pin.read()
        except BaseException as error:
            problem = error
        self._pin.close()
        if problem is None:
            self._job.set_result(None)
        else:
            self._job.set_exception(problem)

    def call_off(self) -> bool:
        """Gives its room back, unless it is begun. Returns True if it did."""
        if not self._take():
            return False
        self._cancel_turns()
        self._job.cancel()
        self._pin.close()
        return True

    def _take(self) -> bool:
        """True for the first caller only, from whichever thread."""
        return self._taken.acquire(blocking=False)

    def _cancel_turns(self) -> None:
        for turn in self.turns.values():
            turn.cancel()


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


class _PathsInUse:
    """The paths that each client has in use."""

    def __init__(self):
        # client -> how often it has each path in use. None is empty.
        self._in_use: dict[str, collections.Counter[PathDigests]] = {}

    def take(self, client: str, path: PathDigests) -> None:
        """A client has a path in use, once more."""
        self._in_use.setdefault(client, collections.Counter())[path] += 1

    def give_back(self, client: str, path: PathDigests) -> None:
        """A client has a path in use once less."""
        paths = self._in_use[client]
        paths[path] -= 1
        if not paths[path]:
            del paths[path]
        if not paths:
            del self._in_use[client]

    def held(self, client: str, requests: Iterable[_RoomRequest]) -> Iterator[int]:
        """The number of paths that a client has before each of its requests gets room."""
        paths = set(self._in_use.get(client, ()))
        for request in requests:
            yield len(paths)
            paths.add(digests_of(request.modules))


class PathAdmission:
    """One for all requests to a cache, used in one event loop only."""

    def __init__(self, cache: PathCache):
        self._cache = cache
        self._waiting: FairQueue[str, _RoomRequest] = FairQueue()
        self._in_use = _PathsInUse()
        self._retry: asyncio.TimerHandle | None = None
        self._reads = PathReads(cache, self._give_room)

    @contextlib.asynccontextmanager
    async def pinned(self, modules: Modules, client: str) -> AsyncGenerator[None]:
        """Keeps a path in memory. Waits until it fits.

        Raises:
          ObjectMissing, ObjectDamaged, PathCacheTooSmall: it cannot be served.
        """
        self._cache.count_lookup(modules)
        pin = await self._pin(modules, client)
        try:
            yield
        finally:
            pin.close()
            self._give_room()

    async def _pin(self, modules: Modules, client: str) -> PathPin:
        while True:
            pin = await self._room(modules, client)
            try:
                if not self._cache.contains(modules):
                    await self._reads.read(modules, client)
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
        path, pin = digests_of(modules), self._cache.reserve(modules)
        self._in_use.take(client, path)

        def close() -> None:
            pin.close()
            self._in_use.give_back(client, path)
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
        for request in self._waiting.in_order(self._in_use.held):
            if request.pin.done():
                continue
            if not is_full or self._cache.has_room(request.modules):
                try:
                    request.pin.set_result(self._reserve(request.modules, request.client))
                except NoRoomForPath:
                    request.without_room_since = request.without_room_since or now
                except Exception as error:
                    request.pin.set_exception(error)
            if request.pin.done():
                self._waiting.remove(request.client, request)
                continue
            is_full = True
            if _is_starved(request, now):
                break  # those whose path needs no room would starve it
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


def _is_starved(request: _RoomRequest, now: float) -> bool:
    since = request.without_room_since
    return since is not None and now - since > STARVED_SECONDS
