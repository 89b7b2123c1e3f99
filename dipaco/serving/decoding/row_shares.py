"""Clients share the rows of a loop: each gets as many as any other, if it asks for them.

A waiting request of the client with the fewest rows is served next. If no row is free, one of the
client with the most is *paused* for it, as long as that brings the two closer: the request goes
back to the head of its line and continues later. So a client that asks for much gets all while no
other wants anything, and delays the next one by an iteration of the loop, not by its texts.

Clients also share the time that grammars take in the thread that makes the tokens of all.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Collection, Generator, Mapping, Sequence

from dipaco.serving.decoding.batch import Batch, BatchRow
from dipaco.serving.decoding.limits import LoopLimits
from dipaco.serving.decoding.mixing import DecodeStep
from dipaco.serving.decoding.request_queue import PathKey, Stream, Token, key_of

ActiveRow = tuple[Batch, BatchRow]
RowWithTokens = tuple[BatchRow, Batch, DecodeStep, list[Token]]
GRAMMAR_SECONDS = 0.004  # for grammars in one turn: a block of a small model takes as long


class RowShares:
    """The active rows at one moment, by path and by client.

    Args:
      num_free: rows that no request has.
      new: rows that have just been given, and are not paused.
    """

    def __init__(
        self,
        batches: Mapping[PathKey, Batch],
        limits: LoopLimits,
        num_free: int,
        new: Collection[BatchRow] = (),
    ):
        self._batches, self._limits, self._num_free = batches, limits, num_free
        self._new = set(map(id, new))
        self._rows = [(batch, row) for batch in batches.values() for row in batch.rows]
        self._heaviest: dict[PathKey | None, tuple[Counter[str], str | None]] = {}
        self.by_path = {key: len(batch.rows) for key, batch in batches.items()}
        self.by_client = Counter(map(_client_of, self._rows))

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
        theirs = [one for one in self._scope(key) if _client_of(one) == other]
        theirs = [one for one in theirs if id(one[1]) not in self._new]
        return min(theirs, key=lambda one: len(one[1].tokens))

    def _gives_way(self, client: str, key: PathKey) -> str | None:
        """The client with the most rows, if it keeps as many as this one after giving one up."""
        scope = key if self._is_full(key) else None
        if scope not in self._heaviest:
            rows = self._scope(key)
            counts = Counter(map(_client_of, rows))
            old = {_client_of(one) for one in rows if id(one[1]) not in self._new}
            self._heaviest[scope] = counts, max(old, key=counts.__getitem__, default=None)
        counts, heaviest = self._heaviest[scope]
        if heaviest is None or counts[heaviest] - 1 < counts[client] + 1:
            return None
        return heaviest

    def _is_free(self, key: PathKey) -> bool:
        return self._num_free > 0 and not self._is_full(key)

    def _is_full(self, key: PathKey) -> bool:
        return self.by_path.get(key, 0) >= self._limits.rows_per_path

    def _scope(self, key: PathKey) -> list[ActiveRow]:
        """The rows of which one must go: of the path if it is full, else of all."""
        if not self._is_full(key):
            return self._rows
        return [(self._batches[key], row) for row in self._batches[key].rows]


def _client_of(one: ActiveRow) -> str:
    return one[1].stream.request.client


class GrammarTurn:
    """Processor time of grammars, in turns: one of rows that begin, one of rows that have tokens.
    A row of another client is before those of a client whose grammars took more time.
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
        """Charges a client with the time of what is done inside."""
        started_seconds = time.thread_time()
        try:
            yield
        finally:
            seconds = time.thread_time() - started_seconds
            self._used_seconds += seconds
            if client in self._by_client:
                self._by_client[client] += seconds

    def in_order(self, rows: Sequence[RowWithTokens]) -> list[RowWithTokens]:
        """The rows, those first whose clients were charged least. A new client begins with as much
        as the least of the others.
        """
        clients = [row.stream.request.client for row, *_ in rows]
        known = {each: seconds for each, seconds in self._by_client.items() if each in clients}
        least = min(known.values(), default=0.0)
        self._by_client = {each: known.get(each, least) - least for each in clients}
        return sorted(rows, key=lambda each: self._by_client[each[0].stream.request.client])
