"""A peer that leaves waits for the round that has its sum, as long as a leader knows it."""

import asyncio

import pytest

from dipaco.swarm.errors import SwarmRefuses


async def leaves_in_an_averaging(group):
    """A peer that waits for a round that does not end; and the step."""
    rounds, forever = group.leader._rounds, asyncio.Event()

    async def hold(plan):
        await forever.wait()

    rounds.hold = hold
    peer = await group.join("ana")
    step = asyncio.ensure_future(group.step())
    while peer.group_state is None or peer.group_state.plan is None:
        await asyncio.sleep(0.01)
    peer.leave()
    await asyncio.sleep(0.2)
    _, running = group.volunteers["ana"]
    assert not running.done(), "the round has its sum, or its slice"
    return peer, running, step


async def test_who_leaves_in_an_averaging_whose_leader_is_gone_does_not_wait_for_another(group):
    _, running, step = await leaves_in_an_averaging(group)
    await group.wire.transport.close()
    await asyncio.wait_for(running, 10)
    step.cancel()


async def test_who_leaves_in_an_averaging_and_is_refused_meanwhile_is_told_why(group):
    peer, running, step = await leaves_in_an_averaging(group)
    group.leader.group.ban(peer.wire.name, "its gradient is half of that of its rows")
    group.leader._published.publish(plan=None)
    with pytest.raises(SwarmRefuses, match="half of that"):
        await asyncio.wait_for(running, 10)
    step.cancel()
