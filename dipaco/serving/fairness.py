"""Clients share what a server has: a fair queue, places, the time of grammars, and threads.

A client is who sent a request: an API key, else a connection. A client that asks for much waits for
its own work, others do not wait for all of it, and none waits for ever.
"""

import asyncio
import concurrent.futures
import contextlib
import functools
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from typing import Any, Generic, ParamSpec, TypeVar

from dipaco.serving.errors import QueueFull

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")


class FairQueue(Generic[Key, Item]):
    """Items that wait for a thread, for a row of a loop, or for memory for a path.

    They wait in lines, one for each key: a client, or a client with the path or memory that it
    wants. The line whose key holds least is served next. Of equals, the one whose last turn is
    longest ago. Within a line the first to come is served first. Whoever uses the queue says what a
    key holds: any value that can be compared. Not thread-safe.
    """

    def __init__(self) -> None:
        # The key whose last turn is longest ago comes first. No line is empty.
        self._lines: OrderedDict[Key, deque[Item]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def __iter__(self) -> Iterator[Item]:
        return (item for line in self._lines.values() for item in line)

    def put(self, key: Key, item: Item) -> None:
        """Adds an item at the end of its line. A new line has its turn after all others."""
        self._lines.setdefault(key, deque()).append(item)

    def put_back(self, key: Key, item: Item) -> None:
        """Adds an item at the head of its line: it was taken, and could not begin or go on."""
        self._lines.setdefault(key, deque()).appendleft(item)

    def remove(self, key: Key, item: Item) -> bool:
        """Takes out one item. Returns whether it waited. Its line keeps its turn."""
        line = self._lines.get(key, deque())
        if item not in line:
            return False
        line.remove(item)
        if not line:
            del self._lines[key]
        return True

    def next(self, held: Callable[[Key, Item], Any] | None = None) -> Item | None:
        """Takes out the item that is served next. None: nobody may be served. `held` tells what a
        key holds, or None if the first item of its line may not be served now.
        """
        key = next(iter(self._lines), None)
        if held is not None:
            holding = {key: held(key, line[0]) for key, line in self._lines.items()}
            may = [key for key, amount in holding.items() if amount is not None]
            key = min(may, key=holding.__getitem__, default=None)
        if key is None:
            return None
        item = self._lines[key].popleft()
        self.end_turn(key)
        if not self._lines[key]:
            del self._lines[key]
        return item

    def end_turn(self, key: Key) -> None:
        """A key has had its turn: all others that wait come before it."""
        if key in self._lines:
            self._lines.move_to_end(key)

    def in_order(self, held: Callable[[Key, Sequence[Item]], Iterable[Any]]) -> list[Item]:
        """All items, the next first, each as if those before it had been served. `held` tells what
        a key would hold as each item of its line is served.
        """
        ranked = [
            (amount, turn, item)
            for turn, (key, line) in enumerate(self._lines.items())
            for item, amount in zip(line, held(key, line), strict=True)
        ]
        return [item for *_, item in sorted(ranked, key=lambda each: each[:2])]


class ClientPlaces:
    """Places that clients hold. Not thread-safe.

    A client also gets places when all are taken, up to its equal share. All clients together so
    hold at most `places` times 1 + 1/2 + ... + 1/clients: few wait.
    """

    def __init__(self):
        self._held: Counter[str] = Counter()

    def take(self, client: str, number: int, places: int) -> bool:
        """Takes so many for a client, all or none of them. Returns True if it got them."""
        num_clients = len(self._held.keys() | {client})
        is_free = self._held.total() + number <= places
        has_share = num_clients > 1 and self._held[client] + number <= places // num_clients
        if is_free or has_share:
            self._held[client] += number
        return is_free or has_share

    @contextlib.contextmanager
    def taken(self, client: str, number: int, places: int) -> Generator[None]:
        """The client has so many while the context is open. Raises `QueueFull`."""
        if not self.take(client, number, places):
            raise QueueFull(waiting=self._held.total())
        try:
            yield
        finally:
            self.give_back(client, number)

    def give_back(self, client: str, number: int = 1) -> None:
        self._held[client] -= number
        self._held += Counter()  # drops zeros


GRAMMAR_SECONDS = 0.004  # for grammars in one turn: a block of a small model takes as long


class GrammarTurn:
    """Processor time of grammars, in turns: one of rows that begin, one of rows that have tokens.
    A row of another client is before a row of a client whose grammars took more time.
    """

    def __init__(self):
        self._used_seconds = 0.0
        self._by_client: dict[str, float] = {}

    def begin(self) -> None:
        """The next turn begins."""
        self._used_seconds = 0.0

    @property
    def is_over(self) -> bool:
        """True if no other row should use its grammar in this turn. The first always may."""
        return self._used_seconds > GRAMMAR_SECONDS

    @contextlib.contextmanager
    def charged(self, client: str) -> Generator[None]:
        """Charges a client with the time that the context takes."""
        started_seconds = time.thread_time()
        try:
            yield
        finally:
            seconds = time.thread_time() - started_seconds
            self._used_seconds += seconds
            if client in self._by_client:
                self._by_client[client] += seconds

    def in_order(self, rows: Sequence[Item], client_of: Callable[[Item], str]) -> list[Item]:
        """The rows, those first whose clients were charged least. A new client begins with as much
        as the least of the others.
        """
        clients = list(map(client_of, rows))
        known = {each: seconds for each, seconds in self._by_client.items() if each in clients}
        least = min(known.values(), default=0.0)
        self._by_client = {each: known.get(each, least) - least for each in clients}
        return sorted(rows, key=lambda row: self._by_client[client_of(row)])


Given = ParamSpec("Given")
Input = TypeVar("Input")
Value = TypeVar("Value")


class _Job:
    """A call that some callers wait for. Until it is begun, it is in line for each client."""

    def __init__(self, key: Hashable, work: Callable[[], Any]):
        self.key, self.work = key, work
        self.callers: list[asyncio.Future[Any]] = []
        self.clients: set[str] = set()
        self.is_begun = False


class FairThreads:
    """Threads that clients share fairly: a free thread takes the next job of a `FairQueue`. They
    serve one event loop at a time. A job that waits, for a disk or a bucket, holds its thread
    meanwhile: such work has separate threads.
    """

    def __init__(self, threads: int, name: str):
        self._pool = concurrent.futures.ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._lock = threading.Lock()  # Guards the three fields below.
        self._num_free = threads
        self._waiting: FairQueue[str, _Job] = FairQueue()  # Empty while a thread is free.
        self._jobs: dict[Hashable, _Job] = {}  # waiting and running jobs, by their keys

    async def run(
        self,
        client: str,
        function: Callable[Given, Value],
        *args: Given.args,
        **kwargs: Given.kwargs,
    ) -> Value:
        """Calls a function in a thread, in the client's turn, unless the caller is cancelled."""
        return await self.run_shared(client, object(), lambda: function(*args, **kwargs))

    async def run_shared(self, client: str, key: Hashable, work: Callable[[], Value]) -> Value:
        """The same for work that others may bring too, with the same key. It takes one thread, when
        the first of their clients has its turn. The others keep their turns.
        """
        done: asyncio.Future[Value] = asyncio.get_running_loop().create_future()
        with self._lock:
            job = self._jobs.setdefault(key, _Job(key, work))
            job.callers.append(done)
            if not job.is_begun and client not in job.clients:
                job.clients.add(client)
                self._waiting.put(client, job)
            if self._num_free and (begun := self._begin_next()) is not None:
                self._num_free -= 1
                self._pool.submit(self._work, begun)
        try:
            return await done
        except asyncio.CancelledError:
            with self._lock:
                job.callers.remove(done)
                if not job.callers and not job.is_begun:
                    self._leave_lines(job)
                    del self._jobs[key]
            raise

    def _begin_next(self) -> _Job | None:
        if (job := self._waiting.next()) is not None:
            job.is_begun = True
            self._leave_lines(job)
        return job

    def _leave_lines(self, job: _Job) -> None:
        for client in job.clients:
            self._waiting.remove(client, job)

    def _work(self, job: _Job | None) -> None:
        """Runs in a thread until nobody waits, whatever happens to callers and event loops."""
        while job is not None:
            value, error = None, None
            try:
                value = job.work()
            except BaseException as raised:
                error = raised
            with self._lock:
                del self._jobs[job.key]
                callers, job = list(job.callers), self._begin_next()
                self._num_free += job is None
            for done in callers:
                with contextlib.suppress(RuntimeError):  # the caller's event loop is closed
                    done.get_loop().call_soon_threadsafe(_end, done, value, error)


class FairBatches(Generic[Input, Value]):
    """Values that clients bring, computed together in a thread: those that come meanwhile are the
    next batch, at most so many of them, in the clients' turns. It is used in one event loop only.
    """

    def __init__(
        self, function: Callable[[Sequence[Input]], Sequence[Value]], most: int, name: str
    ):
        self._function, self._most = function, most
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix=name)
        self._waiting: FairQueue[str, tuple[Input, asyncio.Future[Value]]] = FairQueue()
        self._is_busy = False

    async def compute(self, client: str, value: Input) -> Value:
        """The output of a value. Raises what the function raised for its batch."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Value] = loop.create_future()
        self._waiting.put(client, (value, done))
        if not self._is_busy:
            self._is_busy = True
            loop.call_soon(self._begin)  # after those that come with it
        return await done

    def _begin(self) -> None:
        batch: list[tuple[Input, asyncio.Future[Value]]] = []
        while len(batch) < self._most and (item := self._waiting.next()) is not None:
            if not item[1].done():  # Its caller is still there.
                batch.append(item)
        self._is_busy = bool(batch)
        if batch:
            values, ends = [value for value, _ in batch], [done for _, done in batch]
            loop = asyncio.get_running_loop()
            running = loop.run_in_executor(self._thread, self._function, values)
            running.add_done_callback(functools.partial(self._end, ends))

    def _end(self, ends: list[asyncio.Future[Value]], running: asyncio.Future) -> None:
        self._begin()
        error = running.exception()
        outputs = [None] * len(ends) if error else running.result()
        for done, output in zip(ends, outputs, strict=True):
            _end(done, output, error)


def _end(done: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if not done.done():
        if isinstance(error, StopIteration):  # no future takes it
            error = RuntimeError("the function raised StopIteration")
        if error is None:
            done.set_result(value)
        else:
            done.set_exception(error)
