"""Paths read in a few threads, shared fairly by clients. Requests for the same path wait together.

A path takes the turn of whichever client that waits for it is next, and is read once. Requests that
are gone leave nothing behind that holds a thread of others: a path that nobody waits for is not
begun, and one that is begun is read to its end, once, whatever requests for it come meanwhile.
"""

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable

from dipaco.serving.fair_threads import FairThreads
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
        # Taken by whoever begins it or calls it off, and never released.
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
