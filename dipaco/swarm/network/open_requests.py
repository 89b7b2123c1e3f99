"""A bound on what each credential has open here at a time, so that none can fill the memory.

Requests beyond it are refused. A payload is read for a member alone, and beyond `MAX_PAYLOADS` not
until others of that session are done with: machines that share a credential do not wait for each
other.
"""

import asyncio
import collections
import contextlib
import weakref
from collections.abc import Generator

from dipaco.swarm.errors import SwarmRefuses

MAX_BYTES = 16 << 20  # of the open requests of one credential, without their payloads
LEAST_BYTES = 32 << 10  # that each of them counts for: 512 at a time, at most
MAX_PAYLOADS = 2  # of one session at a time, from their first byte until they are handled


class OpenRequests:
    """The requests that a wire handles now."""

    def __init__(self) -> None:
        self._bytes: collections.Counter[str] = collections.Counter()  # by serial
        self._payloads: weakref.WeakValueDictionary[str, asyncio.Semaphore] = (
            weakref.WeakValueDictionary()  # by session, while one is held or waited for
        )

    @contextlib.contextmanager
    def one(self, serial: str, num_bytes: int) -> Generator[None]:
        """One more, of a credential.

        Raises:
          SwarmRefuses: too much of that credential is open.
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
        """To be held while a payload of that session is."""
        return self._payloads.setdefault(sender, asyncio.Semaphore(MAX_PAYLOADS))
