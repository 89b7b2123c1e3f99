"""A few threads for work on requests, which clients take in turn."""

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec, TypeVar

from dipaco.serving.fairness import FairQueue

Given = ParamSpec("Given")
Value = TypeVar("Value")


class _Job(NamedTuple):
    """A call that a client waits for."""

    done: asyncio.Future[Any]
    work: Callable[[], Any]


class FairThreads:
    """Threads that clients share fairly: a free thread takes the next job of a `FairQueue`. They
    serve one event loop at a time.

    Args:
      threads: jobs at once. A job that waits, for a disk or a bucket, holds its thread meanwhile.
        Such work has separate threads, as many as may wait at once.
      name: prefix of the threads' names.
    """

    def __init__(self, threads: int, name: str):
        self._pool = concurrent.futures.ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._lock = threading.Lock()  # Guards the two fields below.
        self._num_free = threads
        self._waiting: FairQueue[str, _Job] = FairQueue()  # Empty while a thread is free.

    async def run(
        self,
        client: str,
        function: Callable[Given, Value],
        *args: Given.args,
        **kwargs: Given.kwargs,
    ) -> Value:
        """Calls a function in a thread. Returns or raises whatever it does. A caller that is
        cancelled before its turn takes none.
        """
        done: asyncio.Future[Value] = asyncio.get_running_loop().create_future()
        job = _Job(done, lambda: function(*args, **kwargs))
        with self._lock:
            self._waiting.put(client, job)
            if self._num_free:
                self._num_free -= 1
                self._pool.submit(self._work, self._waiting.next())
        try:
            return await done
        except asyncio.CancelledError:
            with self._lock:
                self._waiting.remove(client, job)
            raise

    def _work(self, job: _Job | None) -> None:
        """Runs in a thread until nobody waits. Whatever happens to a caller and its event loop, the
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
                job = self._waiting.next()
                self._num_free += job is None


def _end(done: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if not done.done():
        if isinstance(error, StopIteration):  # no future takes it
            error = RuntimeError("the function raised StopIteration")
        if error is None:
            done.set_result(value)
        else:
            done.set_exception(error)
