"""Peers that do not reach each other: who adds up, and that no sum is lost by it."""

import asyncio

import pytest

pytest.importorskip("cryptography", reason="the extra `swarm` is not installed")

from tests.support.swarm_rig import Group, assert_replayed


def run(scenario):
    return asyncio.run(asyncio.wait_for(scenario(), 100))


def cut(wire, address):
    """From now on `wire` has no connection to `address`."""
    open_stream = wire.transport.open

    async def refuse(where):
        if where == address:
            raise ConnectionRefusedError(f"no route to {where}")
        return await open_stream(where)

    wire.transport.open = refuse


def test_of_two_peers_without_a_connection_neither_is_removed_and_the_rest_adds_up():
    async def scenario():
        async with Group() as group:
            ana = await group.join("ana", slow=0.02, bytes_per_second=1e9)
            await group.step()
            bo = await group.join("bo", slow=0.02)
            cut(bo.wire, ana.wire.address)
            for _ in range(60):
                outcome = await group.step()
                if {ana.wire.name, bo.wire.name} <= set(outcome.blocks_by_peer):
                    break
            assert {ana.wire.name, bo.wire.name} <= set(outcome.blocks_by_peer)
            reducers = {part.reducer for part in outcome.closed.slices}
            assert ana.wire.name not in reducers
            assert bo.wire.name in reducers, "the leader does not add up everything"
            assert not any("is gone" in sentence for sentence in group.said), group.said
            assert_replayed(group)

    run(scenario)


def test_a_peer_that_is_not_reached_at_its_address_is_taken_for_a_client():
    async def scenario():
        async with Group() as group:
            said = []
            group.wire.transport.open, opened = None, group.wire.transport.open

            async def behind_a_router(address):
                if any(address == one.wire.address for one, _ in group.volunteers.values()):
                    return await opened(address)
                raise ConnectionRefusedError("no route to host")

            group.wire.transport.open = behind_a_router
            ana = await group.join("ana", slow=0.01, say=said.append)
            assert group.leader.group.members[ana.wire.name].address is None
            assert any("is not reached from outside" in sentence for sentence in said)
            for _ in range(2):
                outcome = await group.step()
                assert {part.reducer for part in outcome.closed.slices} == {group.wire.name}
            assert_replayed(group)

    run(scenario)
