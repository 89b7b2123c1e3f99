"""An auxiliary: a peer without state that adds up slices of each round, and computes nothing."""

import asyncio

from dipaco.swarm.roles.peer import Peer


class Auxiliary(Peer):
    """A peer that only adds up."""

    samples = 0
    samples_per_second = 0.0

    async def run(self) -> None:
        """Takes part until the run is over, or `leave` is called.

        Raises:
          SwarmRefuses, SwarmUnreachable.
        """
        polling = asyncio.ensure_future(self.poll_forever())
        leaving = asyncio.ensure_future(self._is_leaving.wait())
        try:
            done, _ = await asyncio.wait([polling, leaving], return_when=asyncio.FIRST_COMPLETED)
            if leaving in done:
                while self.group_state is not None and self.group_state.plan is not None:
                    await self.wait_for_change(1.0)  # senders wait for its slice
                await self.send_leave()
            for task in done - {leaving}:
                task.result()
        finally:
            for task in (polling, leaving):
                task.cancel()
            await asyncio.gather(polling, leaving, return_exceptions=True)
