"""A clock for a group in one process: where all of it only waits, the clock goes to the end of the
wait. What is computed takes a tenth of its true time, so that no peer of a test becomes a slow one
because this machine is busy.
"""

import asyncio
import selectors
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

MOST_SECONDS = 600.0  # of that clock, in one scenario
SETTLE_SECONDS = 0.5
FASTER = 10.0  # Seconds of the true clock in one of this clock, while something is computed.


class MovingLoop(asyncio.SelectorEventLoop):
    """An event loop that does not wait for times, but for threads and for bytes."""

    def __init__(self):
        self._skipped, self._monotonic = 0.0, time.monotonic
        self._began = time.monotonic()
        self._threads, self._asleep, self._working = ThreadPoolExecutor(32), 0, set()
        super().__init__(_Selector(self))
        self.set_default_executor(self._threads)

    def time(self):
        return self._began + (self._monotonic() - self._began) / FASTER + self._skipped

    def skip(self, seconds):
        self._skipped += seconds

    @property
    def is_computing(self):
        return len(self._working) > self._asleep

    def run_in_executor(self, executor, func, *arguments):
        work = self._threads.submit(func, *arguments)
        self._working.add(work)
        awaited = asyncio.wrap_future(work, loop=self)
        work.add_done_callback(self._working.discard)  # the last of all: the loop is woken before
        return awaited

    async def settled(self):
        """Waits a moment, by the true clock, until connections are closed at both ends. Then ends
        those that nobody has closed, as those of a killed peer.
        """
        until = self._monotonic() + SETTLE_SECONDS
        while self._monotonic() < until and self._open():
            await asyncio.sleep(0.01)
        while still_open := self._open():
            for each in still_open:
                each.abort()
            await asyncio.sleep(0.01)

    def _open(self):
        return [each for each in list(self._transports.values()) if each._sock is not None]

    def sleep_in_thread(self, seconds):
        """Of one of its threads: `time.sleep`, by this clock."""
        awake = threading.Event()

        def falls_asleep():
            self._asleep += 1
            self.call_later(seconds, wakes)

        def wakes():
            self._asleep -= 1
            awake.set()

        self.call_soon_threadsafe(falls_asleep)
        awake.wait()


class _Selector(selectors.DefaultSelector):
    def __init__(self, loop):
        super().__init__()
        self._loop = loop

    def select(self, timeout=None):
        if (events := super().select(0)) or timeout == 0:
            return events
        if timeout is None or self._loop.is_computing:
            return super().select(timeout)
        # A long time-out is not skipped where bytes that end it may only need a moment.
        if not (events := super().select(min(timeout, 1e-3 if timeout < 0.5 else 5e-3))):
            self._loop.skip(timeout)
        return events


def run(scenario):
    """`asyncio.run` of what it makes, by such a clock, which is the process's while it runs."""

    async def whole():
        try:
            return await asyncio.wait_for(scenario(), MOST_SECONDS)
        finally:
            await asyncio.get_running_loop().settled()

    with pytest.MonkeyPatch.context() as patch, asyncio.Runner(loop_factory=MovingLoop) as runner:
        patch.setattr(time, "monotonic", runner.get_loop().time)
        return runner.run(whole())


async def until(condition, seconds=60.0):
    """Waits until that holds."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)
