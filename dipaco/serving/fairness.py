"""Clients share what a server has: one fair queue, one way of giving out places, and threads.

A client is who sent a request: an API key, else a connection. A client that asks for much waits for
its own work, others do not wait for all of it, and none waits for ever.
"""

import asyncio
import concurrent.futures
import contextlib
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar

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
        """Takes out the item that is served next. None: nobody may be served.

        Args:
          held: what a key holds, or None if the first item of its line may not be served now. By
            default all keys hold the same.
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
        """All items, the next first, each as if those before it had been served.

        Args:
          held: what a key would hold as each item of its line is served.
        """
        ranked = [
            (amount, turn, item)
            for turn, (key, line) in enumerate(self._lines.items())
            for item, amount in zip(line, held(key, line), strict=True)
        ]
        return [item for *_, item in sorted(ranked, key=lambda each: each[:2])]


def has_room(held: Mapping[str, int], client: str, number: int, places: int) -> bool:
    """True if a client gets so many more of a number of places.

    A client also gets places when all are taken, up to its equal share. All clients together so
    hold at most `places` times 1 + 1/2 + ... + 1/clients: few wait.

    Args:
      held: places by client. One without any may be missing.
    """
    if sum(held.values()) + number <= places:
        return True
    num_clients = len({client for client, number in held.items() if number} | {client})
    return num_clients > 1 and held.get(client, 0) + number <= places // num_clients


class ClientPlaces:
    """Places that clients hold, as many as `has_room` gives each. Not thread-safe."""

    def __init__(self):
        self._held: Counter[str] = Counter()

    @property
    def num_held(self) -> int:
        return self._held.total()

    def take(self, client: str, number: int, places: int) -> bool:
        """Takes so many for a client, all or none of them. Returns True if it got them."""
        if not has_room(self._held, client, number, places):
            return False
        self._held[client] += number
        return True

    def give_back(self, client: str, number: int = 1) -> None:
        self._held[client] -= number
        self._held += Counter()  # drops zeros


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
