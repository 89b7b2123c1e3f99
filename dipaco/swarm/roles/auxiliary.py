"""An auxiliary: a peer without state that adds up slices of each round, and computes nothing."""

from dipaco.swarm.network.side_by_side import first_of, side_by_side
from dipaco.swarm.roles.peer import Peer


class Auxiliary(Peer):
    """A peer that only adds up."""

    samples = 0
    does, is_untimed = "adds up", True

    async def run(self) -> None:
        """Takes part until the run is over, or `leave` is called.

        Raises:
          SwarmRefuses, SwarmUnreachable.
        """
        async with side_by_side(self.poll_forever(), self._is_leaving.wait()) as (polling, leaving):
            await first_of(polling, leaving)
            if leaving.done():
                while (state := self.group_state) and state.plan:
                    if self.is_without_leader([polling]):
                        break
                    await self.wait_for_change(1.0)  # senders wait for its slice
                await self.send_leave()
            if polling.done():
                polling.result()
