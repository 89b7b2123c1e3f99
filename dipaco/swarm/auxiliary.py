"""An auxiliary: a peer without state that adds up slices of each round, and computes nothing."""

import asyncio
from collections.abc import Callable

from dipaco.swarm.holder import Holder
from dipaco.swarm.peer import Peer
from dipaco.swarm.wire import Wire


class Auxiliary(Peer):
    """A peer that only adds up; arguments as `Peer`."""

    samples = 0

    def __init__(
        self,
        wire: Wire,
        backbones: tuple[str, ...],
        holder: Holder,
        *,
        bytes_per_second: float = 0.0,
        say: Callable[[str], None] = lambda sentence: None,
    ):
        super().__init__(
            wire, backbones, holder, computes=False, bytes_per_second=bytes_per_second, say=say
        )
        self._is_leaving = asyncio.Event()

    async def run(self) -> None:
        """Until the run is over, or `leave` is called.

        Raises:
          SwarmRefuses, SwarmUnreachable.
        """
        listening = asyncio.ensure_future(self.listen_forever())
        leaving = asyncio.ensure_future(self._is_leaving.wait())
        try:
            done, _ = await asyncio.wait([listening, leaving], return_when=asyncio.FIRST_COMPLETED)
            if leaving in done:
                while self.board is not None and self.board.plan is not None:
                    await self.changed(1.0)  # others wait for its slice
                await self.say_goodbye()
            for task in done - {leaving}:
                task.result()
        finally:
            for task in (listening, leaving):
                task.cancel()
            await asyncio.gather(listening, leaving, return_exceptions=True)

    def leave(self) -> None:
        """Soon, in order."""
        self._is_leaving.set()
