"""Bounds on what others may hold open here: strangers, and each credential.

Beyond so many strangers, who have not proved anything yet, the oldest is given up. A credential has
so many sessions and connections at a time, whatever its holder starts. So none can use up this
process's open files, fill its memory or make up members.
"""

import asyncio
import collections
import contextlib
import time
import weakref
from collections.abc import AsyncGenerator, Generator

from dipaco.files import file_limit
from dipaco.swarm.errors import SwarmRefuses

MAX_SESSIONS = 16  # machines that one credential lends at a time
SESSION_SECONDS = 60.0  # A session that has asked nothing for so long does not count.
MAX_CONNECTIONS = 128  # limit for one credential. A request's header may have 128 kB.
OTHER_FILES = 256  # open files for strangers, the ledger, the run and programs
SHARES = 8  # Of the rest, one credential has at most so small a share.
MAX_PAYLOADS = 2  # limit for one session, from a payload's first byte until it is handled


class Unproven:
    """Strangers, the oldest first.

    Args:
      most: the most at a time.
    """

    def __init__(self, most: int):
        self._most = most
        self._limits: collections.deque[asyncio.Timeout] = collections.deque()

    @contextlib.asynccontextmanager
    async def one(self, seconds: float) -> AsyncGenerator[None]:
        """Admits one more, for so long.

        Raises:
          TimeoutError: it took longer, or too many came after it.
        """
        async with asyncio.timeout(seconds) as limit:
            self._limits.append(limit)
            if len(self._limits) > self._most:
                first = self._limits.popleft()
                if not first.expired():
                    first.reschedule(0)  # times out now
            try:
                yield
            finally:
                with contextlib.suppress(ValueError):
                    self._limits.remove(limit)


class OpenRequests:
    """What each credential has open here."""

    def __init__(self) -> None:
        self._connections: collections.Counter[str] = collections.Counter()  # keyed by serial
        # serial -> session -> when it has asked last
        self._sessions: collections.defaultdict[str, dict[str, float]] = collections.defaultdict(
            dict
        )
        self._payloads: weakref.WeakValueDictionary[str, asyncio.Semaphore] = (
            weakref.WeakValueDictionary()  # keyed by session, while one is held or waited for
        )

    @contextlib.contextmanager
    def connection(self, serial: str) -> Generator[None]:
        """Opens one more connection of a credential.

        Raises:
          SwarmRefuses: it has too many.
        """
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
        """A session of a credential asks for something.

        Raises:
          SwarmRefuses: other sessions of that credential are too many.
        """
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
