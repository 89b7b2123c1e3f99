"""Sees that the process of a backbone that leads has ended, wherever it ran: the machine there
answers, and refuses connections at its port. Its claims are then ended, and another backbone may
lead at once; a machine that does not answer may be cut off and lead on, and has its lease.

Should it live all the same, behind a port that was closed, no peer reaches it, and it can record
nothing under the claim that it has lost.
"""

from collections.abc import Callable

from dipaco.swarm.network.wire import Wire
from dipaco.swarm.roles.backbone_ledger import BackboneLedger

REFUSALS = 2  # in a row: at one of them a process may just have been started again


class LeaderWatch:
    """Of one backbone that follows.

    Args:
      wire: its own.
      ledger: of the path.
      say: called with a sentence about what happens.
    """

    def __init__(self, wire: Wire, ledger: BackboneLedger, say: Callable[[str], None]):
        self._wire, self._ledger, self._say = wire, ledger, say
        self._refusals = 0

    async def look(self, *, is_out_of_touch: bool) -> None:
        """Once; to be called often.

        `is_out_of_touch`: this backbone follows none, or the last reply did not come.
        """
        led = self._ledger.other_that_led() if is_out_of_touch else None
        is_refused = led is not None and await self._is_refused(led[1])
        self._refusals = self._refusals + 1 if is_refused else 0
        if led is not None and self._refusals >= REFUSALS:
            self._refusals = 0
            if self._ledger.end_claims_of(led[0]):
                self._say(f"the process of {led[0]} has ended: another backbone may lead at once")

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
