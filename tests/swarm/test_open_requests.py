"""No credential fills the memory of a peer: payloads are read where they belong somewhere, and what
one credential has open at a time is bounded.
"""

import asyncio
import contextlib

import msgspec
import numpy as np
import pytest

from dipaco.swarm.errors import BadMessage, SwarmRefuses
from dipaco.swarm.network import open_requests
from dipaco.swarm.network.messages import (
    NOT_YET,
    Ack,
    ArrivedReply,
    ArrivedRequest,
    LeaveRequest,
    MeanRequest,
    PushRequest,
    round_number_of,
)
from dipaco.swarm.training import state_holder
from dipaco.swarm.training.slices import fetch_mean, push_part
from dipaco.swarm.training.state_holder import StateHolder
from tests.support.swarm_rig import Group, admitted, issue, round_plan, wire_of

PUSH = PushRequest(round_number=round_number_of(7, 1), step=0, start=0, stop=1, sender="eve/1")
MANY = bytes(8 << 20)  # more than sockets hold


@contextlib.asynccontextmanager
async def wires(*names):
    made = [await wire_of(issue(name)) for name in names]
    try:
        yield made
    finally:
        for wire in made:
            await wire.transport.close()


def plan_of(sender, reducer, stop):
    """A round in which one sends and another adds up."""
    slices = [(0, stop, reducer.name, reducer.address)]
    return round_plan(PUSH.round_number, [sender], slices, step=0)


def pushed(wire, to, payload=MANY, method="push", body=PUSH):
    return asyncio.ensure_future(
        wire.ask(to.address, method, body, Ack, payload=payload, within_seconds=30.0)
    )


async def test_a_payload_for_a_round_that_is_not_known_is_not_read_and_its_sender_asks_again(
    monkeypatch,
):
    monkeypatch.setattr(state_holder, "UNSENT_ROUND_SECONDS", 0.5)
    async with Group() as group, wires("eve") as (eve,):
        asked = [pushed(eve, group.wire) for _ in range(4)]
        await asyncio.sleep(0.3)
        assert group.wire.meter.bytes_down < 100_000
        for one in asked:
            with pytest.raises(SwarmRefuses, match=NOT_YET):
                await one


async def test_a_part_and_a_wish_for_a_mean_are_sent_again_until_the_round_is_known(monkeypatch):
    monkeypatch.setattr(state_holder, "UNKNOWN_ROUND_SECONDS", 0.1)
    monkeypatch.setattr(state_holder, "UNSENT_ROUND_SECONDS", 0.1)
    async with wires("ana", "bo") as (ana, bo):
        holder, own = StateHolder(bo), StateHolder(ana)
        plan = plan_of(ana.name, bo, stop=2)
        (part,) = plan.slices
        vector = np.ones(2, np.float32)
        content, sent = vector.tobytes(), {"sender": ana.name}
        pushing = push_part(ana, own.reducer, plan, part, content, within_seconds=9.0, **sent)
        fetching = fetch_mean(ana, own.reducer, plan, part, within_seconds=9.0)
        both = asyncio.gather(pushing, fetching)
        await asyncio.sleep(0.5)
        assert not both.done()
        holder.reducer.begin(plan)
        _, mean = await both
        assert mean == content
        later = msgspec.structs.replace(plan, number=round_number_of(8, 1))
        with pytest.raises(TimeoutError):
            await push_part(ana, own.reducer, later, part, content, within_seconds=0.5, **sent)


async def test_a_payload_of_no_sender_no_member_and_of_no_such_method_is_not_kept():
    async with Group() as group, wires("eve") as (eve,):
        leave = LeaveRequest(step=0, lineage="root", blocks=(0,))
        with pytest.raises(SwarmRefuses, match="not known here"):
            await pushed(eve, group.wire, MANY, "leave", leave)
        group.holder.reducer.begin(plan_of("ana/1", group.wire, stop=1))
        mean = MeanRequest(round_number=1, step=0, start=0, stop=1)
        for method, body, why in (
            ("slice_mean", mean, "`slice_mean` none"),
            ("push", PUSH, "has nothing to add in that round"),
        ):
            down = group.wire.meter.bytes_down
            with pytest.raises((SwarmRefuses, OSError)):
                await pushed(eve, group.wire, MANY, method, body)
            assert group.wire.meter.bytes_down - down < 100_000
            assert why in group.refused[-1][1]


async def test_a_reply_with_a_payload_that_its_method_does_not_bring_is_refused():
    """It could be as long as a reply may be, and come a little at a time."""
    async with wires("back", "ana") as (back, ana):
        asking = ArrivedRequest(round_number=1)

        async def with_content(body, request):
            return ArrivedReply(senders=()), b"content"

        back.register("arrived", ArrivedRequest, with_content)
        with pytest.raises(BadMessage, match="it would bring 7 bytes"):
            await ana.ask(back.address, "arrived", asking, ArrivedReply, within_seconds=20.0)


def test_machines_that_share_a_credential_do_not_wait_for_each_other():
    requests = open_requests.OpenRequests()
    first, second = requests.payload("eve/1"), requests.payload("eve/2")
    assert first is requests.payload("eve/1")
    assert first is not second


async def test_so_many_payloads_of_a_session_are_read_at_a_time_and_anothers_beside_them():
    async with wires("back", "eve", "ana") as (back, eve, ana):
        inside, goes_on = [], asyncio.Event()

        async def slow(body, request):
            inside.append(request.certificate.name)
            await goes_on.wait()
            return Ack(), b""

        back.register("push", PushRequest, slow, admits=admitted)
        asked = [pushed(eve, back, b"part") for _ in range(6)]
        while len(inside) < open_requests.MAX_PAYLOADS:
            await asyncio.sleep(0.01)
        asked.append(pushed(ana, back, b"part"))
        while "ana" not in inside:
            await asyncio.sleep(0.01)
        assert inside.count("eve") == open_requests.MAX_PAYLOADS
        goes_on.set()
        await asyncio.gather(*asked)
        assert inside.count("eve") == 6


async def test_more_open_requests_of_a_credential_are_refused_until_others_have_ended(monkeypatch):
    monkeypatch.setattr(open_requests, "MAX_BYTES", 2 * open_requests.LEAST_BYTES)
    async with wires("back", "eve", "ana") as (back, eve, ana):
        goes_on = asyncio.Event()

        async def slow(body, request):
            await goes_on.wait()
            return ArrivedReply(senders=()), b""

        back.register("arrived", ArrivedRequest, slow)
        body = ArrivedRequest(round_number=1)

        def ask(wire):
            return wire.ask(back.address, "arrived", body, ArrivedReply, within_seconds=20.0)

        await eve._greeted(back.address)
        held = [asyncio.ensure_future(ask(eve)) for _ in range(2)]
        await asyncio.sleep(0.2)
        with pytest.raises(SwarmRefuses, match="of this credential would hold"):
            await ask(eve)
        held.append(asyncio.ensure_future(ask(ana)))
        await asyncio.sleep(0.2)
        goes_on.set()
        await asyncio.gather(*held)
        await ask(eve)
