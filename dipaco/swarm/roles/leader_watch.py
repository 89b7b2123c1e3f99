"""Sees that the process of a leading backbone has ended, wherever it ran.

It replied to this backbone before, and now its machine answers and refuses connections at its port.
Its claims are then ended, and another backbone may lead at once. A machine that does not answer may
be cut off and lead on, so it keeps its lease.

If it lives all the same, behind a port that was closed meanwhile, it learns at its next heartbeat
that its claim is lost, and leads no more.
"""

import asyncio
import contextlib
from collections.abc import Callable

from dipaco.errors import DipacoError
from dipaco.swarm.network.wire import Wire
from dipaco.swarm.roles.backbone_ledger import BackboneLedger

# Time between two looks. It grows, since plain workers may have the path for long.
LOOK_SECONDS, LOOK_GROWTH, LONGEST_LOOK_SECONDS = 0.25, 1.25, 5.0
REFUSALS = 2  # refusals in a row, since the process may just be restarting after one


class LeaderWatch:
    """Watches the leader for one backbone that follows.

    Args:
      wire: its own.
      ledger: the ledger of the path.
      say: called with a sentence about each event.
    """

    def __init__(self, wire: Wire, ledger: BackboneLedger, say: Callable[[str], None]):
        self._wire, self._ledger, self._say = wire, ledger, say
        self._refusals = 0

    async def look_forever(self, lost: Callable[[], str | None]) -> None:
        """Looks again and again. `lost` gives the argument of `look`."""
        wait_seconds = LOOK_SECONDS
        while True:
            await asyncio.sleep(wait_seconds)
            address = lost()
            longer = min(LOOK_GROWTH * wait_seconds, LONGEST_LOOK_SECONDS)
            wait_seconds = LOOK_SECONDS if address is None else longer
            with contextlib.suppress(DipacoError):
                await self.look(address)

    async def look(self, lost: str | None) -> None:
        """Looks once. It is to be called often.

        `lost`: the address of a leader that replied to this backbone before and does not now.
        """
        holder = None if lost is None else self._ledger.holder_at(lost)
        is_refused = holder is not None and await self._is_refused(lost or "")
        self._refusals = self._refusals + 1 if is_refused else 0
        if holder is not None and self._refusals >= REFUSALS:
            self._refusals = 0
            if self._ledger.end_claims_of(holder):
                self._say(f"the process of {holder[0]} has ended: another may lead at once")

    async def _is_refused(self, address: str) -> bool:
        assert self._wire.transport is not None
        try:
            _, writer = await self._wire.transport.open(address)
        except ConnectionRefusedError:
            return True
        except (OSError, TimeoutError):
            return False
        writer.close()
        return False
