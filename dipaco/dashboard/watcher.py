"""One reader of a run for any number of open pages. It reads while a page is open, and tells all of
them the changes. While no page is open, it asks nothing.
"""

import collections
import contextlib
import math
import threading
import time
from collections.abc import Callable
from typing import Any

from dipaco.control.errors import NotAvailable
from dipaco.dashboard.errors import RunNotReadable, TextsNotReadable
from dipaco.dashboard.reader import FAULTS, Change, Reader
from dipaco.dashboard.recording import difference_of, recording_of, state_of, to_json
from dipaco.dashboard.texts import Texts
from dipaco.dashboard.texts import to_json as texts_to_json
from dipaco.errors import DipacoError
from dipaco.runs.opening import reading
from dipaco.store.address import Address
from dipaco.store.layout import Layout

RESULTS = frozenset(("report", "evaluate", "route"))  # tasks whose facts the status shows first
OLD_SECONDS = 5.0  # a newly opened page gets no older status of an unfinished run
MOST_KEPT = 100  # Differences kept. A page that is further behind fetches the recording again.
STOP_SECONDS = 30.0  # time for a read in progress


class Pace:
    """Intervals between reads of a run. A server is asked less than once a second: two to four
    queries and the bounds of a transaction for each look, 50 for the status.
    """

    def __init__(self, *, is_server: bool):
        self.look_seconds = 10.0 if is_server else 1.0
        self.status_seconds = 150.0 if is_server else 4.0
        self.fault_seconds = 150.0 if is_server else 1.0  # used after something went wrong


class Freshness:
    """Decides when the status is read again. Events since the last read count until the next. The
    status also grows old without an event, for example when the last worker is killed. Only the
    status of a finished run does not.
    """

    def __init__(self, pace: Pace):
        self._pace, self._read_at = pace, -math.inf
        self._is_stale = self._is_urgent = True
        self._is_finished = False

    def note(self, change: Change) -> None:
        """Takes the news of a read of the events."""
        self._is_stale |= change.is_new
        self._is_urgent |= bool(change.outcomes & FAULTS or change.kinds & RESULTS)

    def is_due(self, now: float, *, is_asked: bool) -> bool:
        """True if the status is due at `now`, in seconds. `is_asked`: a new page asks."""
        age, grows_old = now - self._read_at, not self._is_finished
        return (
            (is_asked and (self._is_stale or (grows_old and age > OLD_SECONDS)))
            or (self._is_urgent and age > self._pace.fault_seconds)
            or ((self._is_stale or grows_old) and age > self._pace.status_seconds)
        )

    def read(self, now: float, *, is_finished: bool) -> None:
        """Notes a read of the status now, and whether the run is finished."""
        self._read_at, self._is_stale, self._is_urgent = now, False, False
        self._is_finished = is_finished


def mark_of(address: Address) -> tuple[int, ...] | None:
    """Identifies the file that makes a folder a run's: its ledger (device, number), or the file
    that names the server of its facts. The latter includes its creation time: nobody has it open,
    so the next file may get its number. None if there is neither, and for a run in a bucket, which
    no look checks.
    """
    if address.url is not None:
        return None
    layout = Layout(address.folder)
    with contextlib.suppress(OSError):
        found = layout.database.stat()
        return found.st_dev, found.st_ino, found.st_ctime_ns
    with contextlib.suppress(OSError):
        found = layout.ledger.stat()
        return found.st_dev, found.st_ino
    return None


class Watcher:
    """Reads in its own thread, which `start` begins and `stop` ends.

    Args:
      address: the run's address.
      pace: the intervals; None = chosen for its database.
      reads_at_once: reads before the first page asks, so that the page need not wait.
    """

    def __init__(self, address: Address, pace: Pace | None = None, *, reads_at_once: bool = True):
        self._address, self._pace = address, pace
        self._changed = threading.Condition()
        self._is_stopping, self._wanted = False, 0  # number of open pages
        self._asked, self._answered = int(reads_at_once), 0  # reads that pages wait for
        self._recording = (0, b"")  # (number, JSON)
        self._freshness: Freshness | None = None  # freshness of the status
        self._number = 0  # number of the newest difference
        self._differences: collections.deque[tuple[int, bytes]] = collections.deque(
            maxlen=MOST_KEPT
        )
        self._listeners: set[Callable[[], None]] = set()
        self._problem: DipacoError | None = None
        self._thread = threading.Thread(target=self._work, name="dashboard reader", daemon=True)
        self._table_lock, self._table, self._table_version = threading.Lock(), b"", None
        self._texts_version = (0, 0, 0, 0)
        self._openings = 0  # openings of a run: another may have begun in its place

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        """Ends the streams to pages, and the reading. A signal handler may call it."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        self._tell()

    @property
    def has_finished(self) -> bool:
        return self._is_stopping

    def stop(self) -> None:
        """Finishes and waits for the thread."""
        self.finish()
        self._thread.join(STOP_SECONDS)

    def recording(self) -> bytes:
        """The whole recording in its present state. Raises the error of reading the run."""
        with self._changed:
            if not self._wanted or self._is_recording_old:
                self._asked, self._problem = self._asked + 1, None
                asked = self._asked
                self._changed.notify_all()
                self._changed.wait_for(
                    lambda: self._problem or self._answered >= asked or self._is_stopping
                )
            if self._problem is not None:
                raise self._problem
            return self._recording[1]

    @property
    def _is_recording_old(self) -> bool:
        freshness = self._freshness
        return (
            self._recording[0] != self._number
            or freshness is None
            or freshness.is_due(time.monotonic(), is_asked=True)
        )

    @contextlib.contextmanager
    def opened(self, listener: Callable[[], None]):
        """Counts a page as open. `listener` is called in the reader's thread at every change."""
        with self._changed:
            self._wanted += 1
            self._listeners.add(listener)
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._wanted -= 1
                self._listeners.discard(listener)

    def after(self, number: int) -> list[tuple[int, bytes]] | None:
        """The differences after `number`, or None if some are not kept any more."""
        with self._changed:
            kept = [each for each in self._differences if each[0] > number]
            return kept if number + len(kept) == self._number else None

    def table(self) -> bytes:
        """The texts. They are read again when more has been routed or evaluated, the run went back,
        or the last read failed. Any thread may call it. Raises the errors of reading the run or its
        text, or `TextsNotReadable`. The next call tries again.
        """
        with self._table_lock:
            if self._table_version != self._texts_version:
                version, self._table_version, table = self._texts_version, None, None
                try:
                    with reading(self._address) as run:
                        table = Texts(run).table()
                except NotAvailable:  # nothing has been routed
                    pass
                except OSError as error:
                    raise TextsNotReadable(run=self._address, problem=error) from error
                self._table, self._table_version = texts_to_json(table), version
            return self._table

    def _work(self) -> None:
        while not self._is_stopping:
            try:
                mark = mark_of(self._address)
                with reading(self._address) as run:
                    self._openings += 1
                    pace = self._pace or Pace(is_server=run.database_location.is_server)
                    self._follow(Reader(run), pace, mark)
            except DipacoError as error:
                self._report(error)
            except Exception as error:  # a defect: the page shows it instead of waiting
                self._report(RunNotReadable(run=self._address, problem=repr(error)))

    def _report(self, problem: DipacoError) -> None:
        """Tells all pages that wait for a read, and waits until it is to be tried again."""
        with self._changed:
            self._problem, self._answered = problem, self._asked
        self._begin_again()
        with self._changed:
            self._changed.wait_for(lambda: self._is_stopping or self._is_asked)
            self._problem = None

    def _begin_again(self) -> None:
        """Makes all pages fetch the recording."""
        with self._changed:
            self._differences.clear()
            self._number += 1
            self._changed.notify_all()
        self._tell()

    @property
    def _is_asked(self) -> bool:
        return self._asked > self._answered

    def _follow(self, reader: Reader, pace: Pace, mark: tuple[int, ...] | None) -> None:
        """Follows the run until it must stop, or the run is not there any more."""
        freshness = self._freshness = Freshness(pace)
        state = {}
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._is_stopping or self._is_asked or bool(self._wanted)
                )
                if self._is_stopping:
                    return
                asked, is_asked = self._asked, self._is_asked
            if state and mark_of(self._address) != mark:  # the open file stays readable
                self._begin_again()
                return
            names = {kind: len(each) for kind, each in reader.facts.names().items()}
            change = reader.read()
            freshness.note(change)
            fresh = None
            now = time.monotonic()
            if freshness.is_due(now, is_asked=is_asked):
                state = fresh = state_of(reader)
                freshness.read(now, is_finished=fresh["status"]["finished"])
            if change.is_new or fresh:
                self._publish(reader, change, fresh, names)
            recording = self._recording
            if is_asked:  # made without the lock, which the server's event loop takes
                document = {**recording_of(reader, state), "number": self._number}
                recording = (self._number, to_json(document))
            with self._changed:
                self._recording, self._answered = recording, asked
                self._changed.notify_all()
                self._changed.wait_for(
                    lambda: self._is_stopping or self._is_asked, pace.look_seconds
                )

    def _publish(self, reader: Reader, change: Change, fresh: Any, names: dict[str, int]) -> None:
        difference = to_json(difference_of(reader, change, fresh, names))
        with self._changed:
            self._number += 1
            self._differences.append((self._number, difference))
            if change.has_gone_back:
                self._differences.clear()  # everything is fetched again
            if fresh:
                status, points = fresh["status"], sum(map(len, fresh["curves"].values()))
                routed = sum("route" in stage for stage in status["stages"])
                back = len(status["rollbacks"])
                self._texts_version = (self._openings, routed, points, back)
        self._tell()

    def _tell(self) -> None:
        with self._changed:
            listeners = list(self._listeners)
        for listener in listeners:
            listener()
