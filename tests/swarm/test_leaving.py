"""A peer that leaves waits for the round that has its sum, as long as there is a leader."""

import asyncio

import pytest

pytest.importorskip("cryptography", reason="the extra `volunteer` is not installed")

from dipaco.swarm.roles.auxiliary import Auxiliary
from dipaco.swarm.roles.volunteer import Volunteer
from tests.support.swarm_rig import Group


@pytest.mark.parametrize("kind", [Volunteer, Auxiliary])
def test_who_leaves_in_an_averaging_whose_leader_is_gone_does_not_wait_for_another(kind):
    async def scenario():
        async with Group() as group:
            rounds, forever = group.leader._rounds, asyncio.Event()

            async def hold(plan):
                await forever.wait()

            rounds.hold = hold
            peer = await group.join("ana", kind=kind)
            if kind is Auxiliary:
                await group.join("bo")
            step = asyncio.ensure_future(group.step())
            while peer.group_state is None or peer.group_state.plan is None:
                await asyncio.sleep(0.01)
            peer.leave()
            await asyncio.sleep(0.2)
            _, running = group.volunteers["ana"]
            assert not running.done(), "the round has its sum, or its slice"
            await group.wire.transport.close()
            await asyncio.wait_for(running, 10)
            step.cancel()

    asyncio.run(asyncio.wait_for(scenario(), 60))
