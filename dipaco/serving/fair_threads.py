"""A few threads for work on requests, which clients take in turn."""

import asyncio
import collections
import concurrent.futures
import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

Given = ParamSpec("Given")
Value = TypeVar("Value")


@dataclasses.dataclass(eq=False)
class _Job:
    """A call that a client waits for."""

    done: asyncio.Future[Any]
    work: Callable[[], Any]
    is_waiting: bool = True


class FairThreads:
    """A client that asks for much waits for its own work, and others do not wait for all of it: a
    thread that is free takes the next client's oldest job. Used in one event loop at a time.

    Args:
      threads: jobs at once. One that waits, for a disk or a bucket, holds its thread meanwhile:
        work that may wait has threads of its own, as many as may wait at once.
      name: of the threads.
      patience_seconds: while a thread is at work, another begins only after no job has begun for
        so long. Short jobs hinder each other in several threads: Python runs one at a time.
    """

    def __init__(self, threads: int, name: str, patience_seconds: float = 0.0):
        self._pool = concurrent.futures.ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._threads, self._patience_seconds = threads, patience_seconds
        self._lock = threading.Lock()  # of all below
        self._num_free = threads
        self._begun_seconds = 0.0  # monotonic; when the last job did
        # By client; the one that is served next comes first. None is empty. Where nobody is at
        # work, nobody waits.
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
        self._begin(job)
        try:
            return await done
        except asyncio.CancelledError:
            self._drop(client, job)
            raise

    def _begin(self, job: _Job) -> None:
        """Has another thread work, at once or when those at work take long: while a job waits and
        a thread is free, this is looked at again.
        """
        with self._lock:
            if not job.is_waiting or not self._num_free:
                return
            due_seconds = self._begun_seconds + self._patience_seconds
            if self._num_free == self._threads or time.monotonic() >= due_seconds:
                self._num_free -= 1
                self._pool.submit(self._work, self._next())
            if not job.is_waiting:
                return
            wait_seconds = self._begun_seconds + self._patience_seconds - time.monotonic()
        job.done.get_loop().call_later(wait_seconds, self._begin, job)

    def _drop(self, client: str, job: _Job) -> None:
        with self._lock:
            if job.is_waiting:
                job.is_waiting, jobs = False, self._waiting[client]
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
        job.is_waiting, self._begun_seconds = False, time.monotonic()
        return job


def _end(done: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if not done.done():
        if isinstance(error, StopIteration):  # which no future takes
            error = RuntimeError("the function raised StopIteration")
        if error is None:
            done.set_result(value)
        else:
            done.set_exception(error)
