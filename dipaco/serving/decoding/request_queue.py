"""Requests on their way into a loop: any thread puts them in, the loop's thread takes them out.

The client with the fewest active rows is served next, and of its requests one for the path with the
fewest: a flood by one client, or for one path, does not starve the others. If no row is free, one
of the client with the most is *paused*, as long as that brings the two closer: it goes back to the
head of its line and continues later. So a client that asks for much gets all while no other wants
anything, and delays the next one by an iteration of the loop, not by its texts.
"""

import asyncio
import collections
import contextlib
import dataclasses
import math
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

from dipaco.serving.decoding.decode import LoopLimits
from dipaco.serving.decoding.sampling import SamplingSettings
from dipaco.serving.errors import LoopStopping
from dipaco.serving.fairness import FairQueue

PathKey = tuple[str, int]  # (release, path)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GenerationRequest:
    """One continuation of one prompt."""

    prompt_ids: tuple[int, ...]
    path: int  # chosen by dispatch
    modules: Any = None  # the path's, as the loop's `parts_of` takes them
    # Number of the prompt's ids that were given. It made the rest itself. None = all.
    num_given: int | None = None
    release: str = ""  # digest of the release it was routed in. It finishes on those modules
    max_new_tokens: int
    sampling: SamplingSettings = SamplingSettings()
    client: str = ""  # clients share rows equally
    cache_salt: str = ""  # it begins from the cache of requests with the same salt only
    seed: int = 0  # seed of its draws, 0 or more
    # Tokens that end it. The one that does is the last of the stream.
    stop_ids: frozenset[int] = frozenset()
    min_new_tokens: int = 0  # tokens before a stop id may end it
    num_logprobs: int | None = None  # None = none. k = the chosen token's and the k likeliest
    schema: str | None = None  # JSON schema that the text obeys (`grammar`). None = any text
    prompt_logprobs: bool = False  # also of the prompt's own tokens (`echo`)


class Token(NamedTuple):
    """One token with its log-probabilities, in nats, before temperature, cuts and penalty.

    The first token of a prompt has none.
    """

    id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()  # the likeliest (id, logprob), best first


class Finish(NamedTuple):
    """The end of a stream."""

    reason: Literal["stop", "length", "cancelled", "error"]
    error: Exception | None = None


OnItems = Callable[[Sequence[Token | Finish]], None]  # tokens that came together, or the end


class Stream:
    """The tokens of one request, then a `Finish`. Any thread may read and cancel."""

    def __init__(self, request: GenerationRequest, on_items: OnItems | None = None):
        self.request = request
        self.prompt_logprobs: list[Token] | None = None  # set before the first token comes
        # Tokens from before it was last paused. Only the loop uses them.
        self.made_ids: list[int] = []
        self.row_seconds: float | None = None  # when it first got a row, set before its tokens come
        self.is_cancelled = False
        self._items: queue.SimpleQueue[Token | Finish] = queue.SimpleQueue()
        self._on_items = on_items or self._keep

    @property
    def is_to_be_scored(self) -> bool:
        """True if log-probabilities of its prompt are asked for, and not there yet."""
        return self.request.prompt_logprobs and self.prompt_logprobs is None

    def get(self, timeout_seconds: float | None = None) -> Token | Finish:
        """The next token, or the end. Raises `queue.Empty` if none came in time."""
        return self._items.get(timeout=timeout_seconds)

    def cancel(self) -> None:
        """Frees its row before the next block. The stream then ends with `cancelled`."""
        self.is_cancelled = True

    def put(self, items: Sequence[Token | Finish]) -> None:
        """Called by the loop. A callback that raises cancels its own stream and no other."""
        try:
            self._on_items(items)
        except Exception:
            self.is_cancelled = True

    def _keep(self, items: Sequence[Token | Finish]) -> None:
        for item in items:
            self._items.put(item)


def key_of(stream: Stream) -> PathKey:
    """The path that a stream is for."""
    return stream.request.release, stream.request.path


Item = TypeVar("Item")


class EventBridge(Generic[Item]):
    """Items from other threads into an event loop, with one wake-up for all that have gathered.

    It is created and read in the event loop, and written by any thread. One `call_soon_threadsafe`
    for each token of 200 streams would keep both threads busy with wake-ups.
    """

    def __init__(self) -> None:
        self._event_loop = asyncio.get_running_loop()
        self._ready = asyncio.Event()
        self._items: collections.deque[Item] = collections.deque()
        self._is_wake_up_scheduled = False

    def put(self, item: Item) -> None:
        """Any thread."""
        self._items.append(item)
        if not self._is_wake_up_scheduled:
            self._is_wake_up_scheduled = True
            with contextlib.suppress(RuntimeError):  # the event loop is closed: no reader is left
                self._event_loop.call_soon_threadsafe(self._ready.set)

    async def take(self) -> list[Item]:
        """All items so far, in order. Waits until there is one."""
        await self._ready.wait()
        # This order matters: an item put from here on is either taken below or schedules a new
        # wake-up.
        self._ready.clear()
        self._is_wake_up_scheduled = False
        return [self._items.popleft() for _ in range(len(self._items))]


RECHECK_SECONDS = 0.05  # a request that waits for a path hears of no pin that is released

LineKey = tuple[str, PathKey]  # (client, path)


class ActiveRow(Protocol):
    """A request that is being decoded."""

    stream: Stream
    tokens: list[int]


class RowShares:
    """The active rows at one moment, by path and by client.

    Args:
      num_free: rows that no request has.
      new: rows that have just been given, and are not paused.
      blocked: paths that no request may begin on.
    """

    def __init__(
        self,
        rows: Mapping[PathKey, Sequence[ActiveRow]],
        limits: LoopLimits,
        num_free: int,
        new: Collection[ActiveRow] = (),
        blocked: Set[PathKey] = frozenset(),
    ):
        self._of_path, self._limits, self._num_free = rows, limits, num_free
        self._new, self.blocked = set(map(id, new)), blocked
        self._rows = [row for of_path in rows.values() for row in of_path]
        self._heaviest: dict[PathKey | None, tuple[Counter[str], str | None]] = {}
        self.by_path = Counter({key: len(of_path) for key, of_path in rows.items()})
        self.by_client = Counter(map(_client_of, self._rows))

    def held(self, line: LineKey, first: Stream) -> tuple[int, int] | None:
        """A line's active rows: its client's, its path's. None = its first may not begin."""
        client, key = line
        if key in self.blocked or not self.may_begin(client, key):
            return None
        return self.by_client[client], self.by_path[key]

    def may_begin(self, client: str, key: PathKey) -> bool:
        """True if a request may get a row now, perhaps from a client with more rows."""
        most = self._limits.rows_per_client
        if most is not None and self.by_client[client] >= most:
            return False
        return self._is_free(key) or self._gives_way(client, key) is not None

    def to_pause(self, stream: Stream) -> ActiveRow | None:
        """The row to pause for a request that may begin. None = there is a free one."""
        client, key = stream.request.client, key_of(stream)
        if self._is_free(key) or (other := self._gives_way(client, key)) is None:
            return None
        # The one whose text so far is the shortest: it is read again later.
        theirs = [
            row for row in self._scope(key) if _client_of(row) == other and id(row) not in self._new
        ]
        return min(theirs, key=lambda row: len(row.tokens))

    def _gives_way(self, client: str, key: PathKey) -> str | None:
        """The client with the most rows, if it keeps as many as this one after giving one up."""
        scope = key if self._is_full(key) else None
        if scope not in self._heaviest:
            rows = self._scope(key)
            counts = Counter(map(_client_of, rows))
            old = {_client_of(row) for row in rows if id(row) not in self._new}
            self._heaviest[scope] = counts, max(old, key=counts.__getitem__, default=None)
        counts, heaviest = self._heaviest[scope]
        if heaviest is None or counts[heaviest] - 1 < counts[client] + 1:
            return None
        return heaviest

    def _is_free(self, key: PathKey) -> bool:
        return self._num_free > 0 and not self._is_full(key)

    def _is_full(self, key: PathKey) -> bool:
        return self.by_path[key] >= self._limits.rows_per_path

    def _scope(self, key: PathKey) -> Sequence[ActiveRow]:
        """The rows of which one must go: of the path if it is full, else of all."""
        return self._of_path[key] if self._is_full(key) else self._rows


def _client_of(row: ActiveRow) -> str:
    return row.stream.request.client


def line_of(stream: Stream) -> LineKey:
    """The line of a fair queue in which a request waits."""
    return stream.request.client, key_of(stream)


class RequestQueue:
    """Thread-safe."""

    def __init__(self):
        self._changed = threading.Condition()  # Guards the fields below.
        self._waiting: FairQueue[LineKey, Stream] = FairQueue()
        self._is_stopping = False
        # Monotonic. Requests that are active after it are cancelled.
        self._deadline_seconds = math.inf

    def __len__(self) -> int:
        """Number of waiting requests."""
        with self._changed:
            return len(self._waiting)

    def put(self, stream: Stream) -> None:
        """Adds a new request. Raises `LoopStopping` if no more are taken."""
        with self._changed:
            if self._is_stopping:
                raise LoopStopping()
            self._waiting.put(line_of(stream), stream)
            self._changed.notify_all()

    def put_back(self, stream: Stream) -> None:
        """Adds a request that was taken, and could not begin or go on, at the head of its line."""
        with self._changed:
            self._waiting.put_back(line_of(stream), stream)

    def next(self, shares: RowShares) -> Stream | None:
        """Takes out the request that begins next."""
        with self._changed:
            return self._waiting.next(shares.held)

    def take(self, is_to_go: Callable[[Stream], bool]) -> list[Stream]:
        """Takes out all of which this holds."""
        with self._changed:
            streams = [stream for stream in self._waiting if is_to_go(stream)]
            for stream in streams:
                self._waiting.remove(line_of(stream), stream)
            return streams

    def stop(self, drain_seconds: float) -> None:
        """Takes no more. The loop ends when it has finished its requests, or after so long."""
        with self._changed:
            self._is_stopping = True
            self._deadline_seconds = time.monotonic() + drain_seconds
            self._changed.notify_all()

    def wait_for_work(
        self, *, has_rows: bool, did_something: bool, idle_seconds: float | None = None
    ) -> bool:
        """Returns when the loop should run another iteration. False = it should end.

        Args:
          did_something: True if its last iteration did anything.
          idle_seconds: the longest wait if there is nothing to do. None = no limit.
        """
        with self._changed:
            is_idle = not has_rows and not self._waiting
            if self._is_stopping and (is_idle or time.monotonic() > self._deadline_seconds):
                return False
            if not did_something:
                self._changed.wait(timeout=idle_seconds if is_idle else RECHECK_SECONDS)
            return True
