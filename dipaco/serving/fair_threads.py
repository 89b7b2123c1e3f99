"""A few threads for work on requests, which clients take in turn."""

import asyncio
import collections
import concurrent.futures
from collections.abc import Callable
from typing import ParamSpec, TypeVar

Given = ParamSpec("Given")
Value = TypeVar("Value")

_Job = tuple[asyncio.Future, Callable[[], object]]


class FairThreads:
    """A client that asks for much waits for its own work, and others do not wait for all of it: a
    thread that is free takes the next client's oldest job. Used in one event loop only.

    Args:
      threads: jobs at once. None may wait for anything but the processor.
      name: of the threads.
    """

    def __init__(self, threads: int, name: str):
        self._pool = concurrent.futures.ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._num_free = threads
        # By client; the one that is served next comes first. None is empty.
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
        jobs = self._waiting.setdefault(client, collections.deque())
        jobs.append((done, lambda: function(*args, **kwargs)))
        self._begin()
        return await done

    def _begin(self) -> None:
        while self._num_free and self._waiting:
            client, jobs = self._waiting.popitem(last=False)
            done, work = jobs.popleft()
            if jobs:
                self._waiting[client] = jobs  # after all others
            if not done.cancelled():
                self._num_free -= 1
                running = asyncio.wrap_future(self._pool.submit(work))
                running.add_done_callback(lambda running, done=done: self._end(running, done))

    def _end(self, running: asyncio.Future, done: asyncio.Future) -> None:
        self._num_free += 1
        error = None if running.cancelled() else running.exception()
        if done.cancelled():
            pass
        elif running.cancelled():
            done.cancel()
        elif error is not None:
            done.set_exception(error)
        else:
            done.set_result(running.result())
        self._begin()
