"""Peers that do not reach each other: who adds up, and that no sum is lost by it."""

import asyncio

import numpy as np
import pytest

from dipaco.runs.version import program_version
from dipaco.swarm.network.messages import GroupInfo, JoinRequest
from dipaco.swarm.training.slices import Reducer, push_part
from dipaco.swarm.training.state_holder import StateHolder
from tests.support.swarm_rig import COMPUTE, assert_replayed, issue, round_plan, wire_of


def cut(wire, address, silent_seconds=0.0):
    """From now on `wire` has no connection to `address`, and hears of it after so long."""
    open_stream = wire.transport.open

    async def refuse(where):
        if where == address:
            if silent_seconds:
                await asyncio.sleep(silent_seconds)
                raise TimeoutError
            raise ConnectionRefusedError(f"no route to {where}")
        return await open_stream(where)

    wire.transport.open = refuse


async def test_of_two_peers_without_a_connection_neither_is_removed_and_the_rest_adds_up(group):
    ana = await group.join("ana", slow=0.02, bytes_per_second=1e9)
    await group.step()
    bo = await group.join("bo", slow=0.02)
    cut(bo.wire, ana.wire.address)
    both = {ana.wire.name, bo.wire.name}
    for _ in range(60):  # on a busy machine one may be late, and adds up nothing for a while
        outcome = await group.step()
        reducers = {part.reducer for part in outcome.closed.slices}
        if both <= set(outcome.record.blocks) and bo.wire.name in reducers:
            break
    assert both <= set(outcome.record.blocks)
    assert bo.wire.name in reducers, "the leader does not add up everything"
    assert ana.wire.name not in reducers
    assert not any("is gone" in sentence for sentence in group.said), group.said
    assert_replayed(group)


@pytest.mark.parametrize("silent_seconds", [0.0, 3.0])
async def test_a_sender_that_reaches_the_leader_alone_stays_and_its_parts_are_passed_on(
    group, silent_seconds
):
    """As behind a firewall that lets out little: others go on adding up, and its rows count; also
    where a round is over before it has given up connecting.
    """
    others = [
        await group.join(name, slow=0.02, bytes_per_second=1e9) for name in ("ana", "bo", "cy")
    ]
    eve = await group.join("eve", slow=0.02)
    for one in others:
        cut(eve.wire, one.wire.address, silent_seconds)
    everyone = {one.wire.name for one in (*others, eve)}
    for _ in range(60):
        outcome = await group.step()
        reducers = {part.reducer for part in outcome.closed.slices}
        if everyone <= set(outcome.record.blocks) and len(reducers) > 2:
            break
    assert everyone <= set(outcome.record.blocks)
    assert len(reducers - {group.wire.name, eve.wire.name}) >= 2
    assert not any("is gone" in sentence for sentence in group.said), group.said
    assert_replayed(group)


async def test_a_peer_that_is_not_reached_at_its_address_is_taken_for_a_client(group):
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


async def test_an_address_where_another_peer_answers_is_not_a_newcomers(group):
    ana, eve = await wire_of(issue("ana")), await wire_of(issue("eve"))
    for wire in (ana, eve):
        StateHolder(wire, COMPUTE)  # answers when it is dialled back
    for address, is_reached in ((eve.address, True), (ana.address, False)):
        body = JoinRequest(version=program_version(), address=address, computes=True)
        info, _ = await eve.ask(group.wire.address, "join", body, GroupInfo, within_seconds=5.0)
        assert info.is_reached == is_reached
    for wire in (ana, eve):
        await wire.transport.close()


async def test_a_reducer_at_whose_address_another_peer_answers_is_not_reached():
    """Its sender reports a missing connection: the sum is not at fault."""
    ana, bo = await wire_of(issue("ana")), await wire_of(issue("bo"))
    plan = round_plan(1, (), [(0, 3, "cy/00000000", bo.address)], within_seconds=5.0)
    (part,) = plan.slices
    content = np.ones(3, np.float32).tobytes()
    with pytest.raises(ConnectionRefusedError, match="another peer"):
        await push_part(ana, Reducer(ana.name), plan, part, content, sender=ana.name)
    for wire in (ana, bo):
        await wire.transport.close()
