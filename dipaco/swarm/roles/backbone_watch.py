"""What a backbone watches: the process of the leader that it follows, and whether volunteers or
plain workers have its path.

A leader has ended if it replied to this backbone before, and now its machine refuses connections at
its port. Its claims are then ended, and another backbone may lead at once. A machine that does not
answer may be cut off and lead on, so it keeps its lease. A leader that lives behind a closed port
learns at its next heartbeat that its claim is lost.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import Callable

from dipaco.errors import DipacoError
from dipaco.swarm.network.wire import Wire
from dipaco.swarm.roles.backbone_ledger import BackboneLedger
from dipaco.swarm.roles.leader import Leader

# Time between two looks. It grows, since plain workers may have the path for long.
LOOK_SECONDS, LOOK_GROWTH, LONGEST_LOOK_SECONDS = 0.25, 1.25, 5.0
REFUSALS = 2  # refusals in a row, since the process may just be restarting after one


class LeaderWatch:
    """Watches the leader for one backbone that follows."""

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


DESERTED_SECONDS = 60.0  # A path without volunteers is left to plain workers after so long.
UNSTAFFED_LOOKS = 3  # looks at the ledger before a path without volunteers is left


class Staffing:
    """Leaves a path to plain workers when there are no volunteers, and takes it back when some
    come. A backbone that follows does the same as the leading one.
    """

    def __init__(self, leader: Leader, ledger: BackboneLedger, say: Callable[[str], None]):
        self._leader, self._ledger, self._say = leader, ledger, say
        self._seen_at = -math.inf  # when there was a volunteer
        self._is_recorded, self._unstaffed_looks = False, 0
        self.is_staffed = False  # true if volunteers have the path

    def look(self) -> bool:
        """Looks once. Returns true if `is_staffed` has changed."""
        now = time.monotonic()
        if self._has_volunteers():
            self._seen_at = now
        is_staffed = now - self._seen_at <= DESERTED_SECONDS
        if is_staffed != self._is_recorded:
            self._ledger.put_backbone(is_staffed=is_staffed)
            self._is_recorded = is_staffed
        # A phase is left only when all followers have seen it. Otherwise one of them would claim
        # it.
        self._unstaffed_looks = 0 if is_staffed else self._unstaffed_looks + 1
        is_staffed = self._unstaffed_looks < UNSTAFFED_LOOKS and (is_staffed or self.is_staffed)
        if is_staffed == self.is_staffed:
            return False
        self.is_staffed = is_staffed
        if is_staffed:
            self._say("volunteers are here: the path is theirs")
        else:
            self._say("no volunteers: the path is left to plain workers until some come")
        return True

    def _has_volunteers(self) -> bool:
        """True if this backbone or the leader knows of any."""
        there = None if self._leader.is_leading else self._ledger.is_staffed_by_leader()
        if there is False:
            self._seen_at = -math.inf
        return there or self._leader.num_volunteers() > 0
