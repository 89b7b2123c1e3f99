"""Limits of this process: what others may hold open here, and the use of its link.

Beyond so many strangers, who have not proved anything yet, the oldest is given up. A credential has
so many sessions and connections at a time, whatever its holder starts. So none can use up this
process's open files, fill its memory or make up members.
"""

import asyncio
import contextlib
import time
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Generator
from weakref import WeakValueDictionary

from dipaco.files import file_limit
from dipaco.swarm.errors import SwarmRefuses
from dipaco.swarm.planning.timing import Rate

MAX_SESSIONS = 16  # machines that one credential lends at a time
SESSION_SECONDS = 60.0  # A session that has asked nothing for so long does not count.
MAX_CONNECTIONS = 128  # limit for one credential. A request's header may have 128 kB.
OTHER_FILES = 256  # open files for strangers, the ledger, the run and programs
SHARES = 8  # Of the rest, one credential has at most so small a share.
MAX_PAYLOADS = 2  # limit for one session, from a payload's first byte until it is handled


class Unproven:
    """Strangers, the oldest first: so many at a time, and so many from one place."""

    def __init__(self, most: int, most_of_place: int):
        self._most, self._most_of_place = most, most_of_place
        self._open: list[tuple[str, asyncio.Timeout]] = []

    @contextlib.asynccontextmanager
    async def one(self, seconds: float, place: str) -> AsyncGenerator[None]:
        """Admits one more, for so long. Raises `TimeoutError`, also if too many come after it."""
        async with asyncio.timeout(seconds) as limit:
            self._open.append((place, limit))
            from_here = [one for one in self._open if one[0] == place]
            for known, most in ((from_here, self._most_of_place), (self._open, self._most)):
                if len(known) > most:
                    self._open.remove(first := known[0])
                    if not first[1].expired():
                        first[1].reschedule(0)  # times out now
            try:
                yield
            finally:
                with contextlib.suppress(ValueError):
                    self._open.remove((place, limit))


class OpenRequests:
    """What each credential has open here."""

    def __init__(self) -> None:
        self._connections: Counter[str] = Counter()  # keyed by serial
        # serial -> session -> when it has asked last
        self._sessions: defaultdict[str, dict[str, float]] = defaultdict(dict)
        # Keyed by session, while one is held or waited for.
        self._payloads: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @contextlib.contextmanager
    def connection(self, serial: str) -> Generator[None]:
        """Opens one more connection of a credential. Raises `SwarmRefuses`: it has too many."""
        most = min(MAX_CONNECTIONS, max(1, (file_limit() - OTHER_FILES) // SHARES))
        if self._connections[serial] >= most:
            reason = f"this credential has {most} connections open here: try again when some ended"
            raise SwarmRefuses(reason=reason)
        self._connections[serial] += 1
        try:
            yield
        finally:
            self._connections[serial] -= 1
            if not self._connections[serial]:
                del self._connections[serial]

    def note_session(self, serial: str, session: str) -> None:
        """A session asks for something. Raises `SwarmRefuses`: its holder has too many."""
        now = time.monotonic()
        seen = {one: at for one, at in self._sessions[serial].items() if at > now - SESSION_SECONDS}
        self._sessions[serial] = seen
        if session not in seen and len(seen) >= MAX_SESSIONS:
            raise SwarmRefuses(
                reason=f"this credential lends {MAX_SESSIONS} machines already. Ask for another, "
                f"or come back {SESSION_SECONDS:.0f} s after one of them has left"
            )
        seen[session] = now

    def payload(self, session: str) -> asyncio.Semaphore:
        """A semaphore to hold while a payload of that session is in memory."""
        return self._payloads.setdefault(session, asyncio.Semaphore(MAX_PAYLOADS))


MEASURED_BYTES = 64 << 10  # smaller transfers do not measure a link


class LinkMeter:
    """Counts and times the bytes that are moved, and limits their rate."""

    def __init__(self, max_bytes_per_second: float | None = None):
        self.bytes_up = self.bytes_down = 0
        self.up = self.down = Rate()
        self._max = max_bytes_per_second
        self._free_at = {"up": 0.0, "down": 0.0}

    def charge(self, direction: str, num_bytes: int) -> None:
        """Counts bytes that go at once, as polls must. Payloads wait until they would have gone."""
        if direction == "up":
            self.bytes_up += num_bytes
        else:
            self.bytes_down += num_bytes
        if self._max is not None:
            free_at = max(time.monotonic(), self._free_at[direction])
            self._free_at[direction] = free_at + num_bytes / self._max

    async def wait(self, direction: str, num_bytes: int) -> None:
        """Waits until that many more bytes of a payload may go."""
        self.charge(direction, num_bytes)
        if (seconds := self._free_at[direction] - time.monotonic()) > 0:
            await asyncio.sleep(seconds)

    def seconds(self, direction: str, num_bytes: int) -> float:
        """Time for so many bytes at the measured speed, or at the limit; 0 if neither is known."""
        measured = self.up if direction == "up" else self.down
        speed = measured.per_second or self._max
        return num_bytes / speed if speed else 0.0

    def sent(self, num_bytes: int, seconds: float) -> None:
        if num_bytes > MEASURED_BYTES:
            self.up = self.up.after(num_bytes, seconds)

    def received(self, num_bytes: int, seconds: float) -> None:
        if num_bytes > MEASURED_BYTES:
            self.down = self.down.after(num_bytes, seconds)
