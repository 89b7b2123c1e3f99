"""A few threads for work on requests, which clients take in turn."""

import asyncio
import collections
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec, TypeVar

Given = ParamSpec("Given")
Value = TypeVar("Value")


class _Job(NamedTuple):
    """A call that a client waits for."""

    done: asyncio.Future[Any]
    work: Callable[[], Any]


class FairThreads:
    """A client that asks for much waits for its own work, and others do not wait for all of it: a
    thread that is free takes the next client's oldest job. Used in one event loop at a time.

    Args:
      threads: jobs at once. One that waits, for a disk or a bucket, holds its thread meanwhile:
        work that may wait has threads of its own, as many as may wait at once.
      name: of the threads.
    """

    def __init__(self, threads: int, name: str):
        self._pool = concurrent.futures.ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._lock = threading.Lock()  # of all below
        self._num_free = threads
        # By client; the one that is served next comes first. None is empty. While a thread is free,
        # nobody waits.
        self._waiting: collections.OrderedDict[str, collections.deque[_Job]] = (
            collections.OrderedDict()
        )

    async def run(
        self,
        client: str,
        function: Callable[Given, Value],
        *args: Given.args,
        **kwargs: Given.kwargs,
    ) -> Value:
        """What a function returns, called in a thread; raises what it raises. A caller that is
        cancelled before its turn takes none.
        """
        done: asyncio.Future[Value] = asyncio.get_running_loop().create_future()
        job = _Job(done, lambda: function(*args, **kwargs))
        with self._lock:
            self._waiting.setdefault(client, collections.deque()).append(job)
            if self._num_free:
                self._num_free -= 1
                self._pool.submit(self._work, self._next())
        try:
            return await done
        except asyncio.CancelledError:
            self._drop(client, job)
            raise

    def _drop(self, client: str, job: _Job) -> None:
        with self._lock:
            jobs = self._waiting.get(client, collections.deque())
            if job in jobs:
                jobs.remove(job)
                if not jobs:
                    del self._waiting[client]

    def _work(self, job: _Job | None) -> None:
        """In a thread, until nobody waits. Whatever happens to a caller and its event loop, the
        thread goes on to the next.
        """
        while job is not None:
            value, error = None, None
            try:
                value = job.work()
            except BaseException as raised:
                error = raised
            with contextlib.suppress(RuntimeError):  # the caller's event loop is closed
                job.done.get_loop().call_soon_threadsafe(_end, job.done, value, error)
            with self._lock:
                job = self._next()
                self._num_free += job is None

    def _next(self) -> _Job | None:
        """The next client's oldest job; None: nobody waits. The lock is held."""
        if not self._waiting:
            return None
        client, jobs = self._waiting.popitem(last=False)
        job = jobs.popleft()
        if jobs:
            self._waiting[client] = jobs  # after all others
        return job


def _end(done: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if not done.done():
        if isinstance(error, StopIteration):  # which no future takes
            error = RuntimeError("the function raised StopIteration")
        if error is None:
            done.set_result(value)
        else:
            done.set_exception(error)
