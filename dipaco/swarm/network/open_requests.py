"""A bound on what each credential has open here at a time, so that none can fill the memory.

Requests beyond it are refused. Payloads are read only for members. Beyond `MAX_PAYLOADS`, a payload
waits for the session's earlier ones, so that machines which share a credential do not wait for each
other.
"""

import asyncio
import collections
import contextlib
import weakref
from collections.abc import Generator

from dipaco.swarm.errors import SwarmRefuses

MAX_BYTES = 16 << 20  # limit on the open requests of one credential, without their payloads
# Each request counts for at least this much, so at most 512 are open at a time.
LEAST_BYTES = 32 << 10
MAX_PAYLOADS = 2  # limit for one session, from a payload's first byte until it is handled


class OpenRequests:
    """The requests that a wire handles now."""

    def __init__(self) -> None:
        self._bytes: collections.Counter[str] = collections.Counter()  # keyed by serial
        self._payloads: weakref.WeakValueDictionary[str, asyncio.Semaphore] = (
            weakref.WeakValueDictionary()  # keyed by session, while one is held or waited for
        )

    @contextlib.contextmanager
    def one(self, serial: str, num_bytes: int) -> Generator[None]:
        """Opens one more request of a credential.

        Raises:
          SwarmRefuses: the credential has too much open.
        """
        num_bytes = max(num_bytes, LEAST_BYTES)
        if (after := self._bytes[serial] + num_bytes) > MAX_BYTES:
            raise SwarmRefuses(
                reason=f"requests of this credential would hold {after} bytes here, of at most "
                f"{MAX_BYTES}: try again when others have ended"
            )
        self._bytes[serial] = after
        try:
            yield
        finally:
            self._bytes[serial] -= num_bytes

    def payload(self, sender: str) -> asyncio.Semaphore:
        """A semaphore to hold while a payload of that session is in memory."""
        return self._payloads.setdefault(sender, asyncio.Semaphore(MAX_PAYLOADS))
