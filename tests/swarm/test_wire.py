"""Requests and replies, and what strangers and one credential can have a peer hold."""

import asyncio
import contextlib
import functools
import time

import msgspec
import numpy as np
import pytest

from dipaco.swarm.errors import BadMessage, MessageRefused, SwarmRefuses
from dipaco.swarm.network import limits, wire
from dipaco.swarm.network.limits import LinkMeter
from dipaco.swarm.network.messages import (
    NOT_YET,
    Ack,
    ArrivedReply,
    ArrivedRequest,
    ForwardRequest,
    SliceRequest,
    round_number_of,
)
from dipaco.swarm.training import state_holder
from dipaco.swarm.training.slices import coded_parts, fetch_mean, push_part
from dipaco.swarm.training.state_holder import StateHolder
from tests.support.swarm_rig import COMPUTE, Group, admitted, issue, round_plan, wire_of

FETCH = SliceRequest(round_number=1, start=3, stop=4)
ARRIVED = ArrivedRequest(round_number=1)
PUSH = SliceRequest(round_number=round_number_of(7, 1), start=0, stop=1, sender="eve/1")
MANY = bytes(8 << 20)  # more than sockets hold


@contextlib.asynccontextmanager
async def wires(*names):
    """Peers of these names. `back` is a backbone that echoes payloads, and notes what it refused
    (`refused`) and what reached it (`reached`).
    """
    made = [await wire_of(issue(name, "backbone" if name == "back" else "volunteer"))
            for name in names]  # fmt: skip
    back = made[0]
    back.refused, back.reached = [], []
    back.on_refused = lambda sender, reason: back.refused.append((sender, reason))

    async def echo(body, question):
        back.reached.append(question)
        return ArrivedReply(senders=(question.sender,)), question.payload[::-1]

    back.register("slice_mean", SliceRequest, echo, admits=admitted)
    try:
        yield made
    finally:
        for one in made:
            await one.transport.close()


def fetched(who, back, payload=b"", within_seconds=60.0, **more):
    return who.ask(
        back.address, "slice_mean", FETCH, ArrivedReply,
        payload=payload, within_seconds=within_seconds, **more,
    )  # fmt: skip


@contextlib.asynccontextmanager
async def connected(who, back):
    """A stream to a peer, closed when the test ends."""
    reader, writer = await who.transport.open(back.address)
    try:
        yield reader, writer
    finally:
        writer.close()


async def test_requests_get_replies_and_a_peer_that_hangs_up_is_noticed():
    async with wires("back", "ana") as (back, ana):
        hung_up = asyncio.Event()

        async def never(body, question):
            try:
                await asyncio.sleep(1000)
            finally:
                hung_up.set()

        back.register("arrived", ArrivedRequest, never)
        content = bytes(range(256)) * 2000
        mean, got = await fetched(ana, back, content, from_backbone=True)
        assert (mean.senders, got) == ((ana.name,), content[::-1])
        assert ana.meter.bytes_up > len(content) < back.meter.bytes_down
        with pytest.raises(TimeoutError):
            await ana.ask(back.address, "arrived", ARRIVED, Ack, within_seconds=1.0)
        async with asyncio.timeout(10):
            await hung_up.wait()


async def test_a_request_for_a_backbone_is_sent_to_no_other_peer():
    async with wires("eve", "ana") as (eve, ana):
        with pytest.raises(MessageRefused, match="eve was refused: it is no backbone"):
            await fetched(ana, eve, from_backbone=True)
        assert not eve.reached


async def test_a_request_for_one_session_is_taken_by_no_other():
    async with wires("back", "ana", "bo") as (back, ana, bo):
        for recipient in ("back/00000000", "eve/00000000"):
            with pytest.raises(SwarmRefuses, match="for another recipient"):
                await fetched(ana, back, recipient=recipient)
        assert not back.reached
        await fetched(ana, back, recipient=back.name)
        ana.name = bo.name
        with pytest.raises(SwarmRefuses, match="it uses the credential of ana"):
            await fetched(ana, back, recipient=back.name)
        assert len(back.reached) == 1


async def test_a_members_payload_is_no_larger_than_the_limit():
    async with wires("back", "ana") as (back, ana):
        back.max_payload_bytes = 100
        with pytest.raises((SwarmRefuses, OSError)):
            await fetched(ana, back, bytes(101))
        assert back.refused[-1][1].startswith("A message cannot be understood: it would bring 101")
        assert not back.reached


async def test_a_payload_of_no_sender_no_member_and_of_no_such_method_is_not_kept():
    async with Group() as group, wires("eve") as (eve,):
        forward = ForwardRequest(round_number=1, reducer="bo/1")
        with pytest.raises(SwarmRefuses, match="not known here"):
            await pushed(eve, group.wire, MANY, "forward", forward)
        group.holder.reducer.begin(plan_of("ana/1", group.wire, stop=1))
        mean = SliceRequest(round_number=1, start=0, stop=1)
        own = msgspec.structs.replace(PUSH, sender=eve.name)
        for method, body, why in (
            ("slice_mean", mean, "`slice_mean` none"),
            ("push", PUSH, "has nothing to add in that round"),
            ("push", own, "has nothing to add in that round"),
        ):
            down = group.wire.meter.bytes_down
            with pytest.raises((SwarmRefuses, OSError)):
                await pushed(eve, group.wire, MANY, method, body)
            assert group.wire.meter.bytes_down - down < 100_000
            assert why in group.refused[-1][1]


def plan_of(sender, reducer, stop):
    """A round in which one sends and another adds up."""
    slices = [(0, stop, reducer.name, reducer.address)]
    return round_plan(PUSH.round_number, [sender], slices, step=0)


def pushed(who, to, payload=MANY, method="push", body=PUSH):
    return asyncio.ensure_future(
        who.ask(to.address, method, body, Ack, payload=payload, within_seconds=30.0)
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
        holder, own = StateHolder(bo, COMPUTE), StateHolder(ana, COMPUTE)
        plan = plan_of(ana.name, bo, stop=2)
        (part,) = plan.slices
        vector = np.ones(2, np.float32)
        (content,) = coded_parts(plan, vector)
        sent = {"content": content, "sender": ana.name}
        pushing = push_part(ana, own.reducer, plan, part, **sent)
        fetching = fetch_mean(ana, own.reducer, plan, part, within_seconds=9.0)
        both = asyncio.gather(pushing, fetching)
        await asyncio.sleep(0.5)
        assert not both.done()
        holder.reducer.begin(plan)
        _, mean = await both
        assert mean == vector.tobytes()
        later = {"number": round_number_of(8, 1), "within_seconds": 0.5}
        later = msgspec.structs.replace(plan, **later)
        with pytest.raises(TimeoutError):
            await push_part(ana, own.reducer, later, part, **sent)


async def test_a_reply_with_a_payload_that_its_method_does_not_bring_is_refused():
    """It could be as long as a reply may be, and come a little at a time."""
    async with wires("back", "ana") as (back, ana):

        async def with_content(body, request):
            return ArrivedReply(senders=()), b"content"

        back.register("arrived", ArrivedRequest, with_content)
        with pytest.raises(BadMessage, match="it would bring 7 bytes"):
            await ana.ask(back.address, "arrived", ARRIVED, ArrivedReply, within_seconds=20.0)


async def test_a_strangers_text_and_a_long_header_reach_no_terminal():
    async with wires("back", "ana") as (back, ana):
        with pytest.raises(SwarmRefuses) as caught:
            await ana.ask(back.address, "\x1b[2J\r\nok", Ack(), ArrivedReply, within_seconds=60.0)
        for text in (back.refused[0][1], str(caught.value)):
            assert "there is no method" in text
            assert text.isprintable()
        ana.name = "ana/\x1b[2J"
        with pytest.raises(SwarmRefuses, match="the credential of ana"):
            await fetched(ana, back)
        assert back.refused[-1][0].isprintable()
        with pytest.raises((OSError, SwarmRefuses)):
            await ana.ask(back.address, "h" * (600 << 10), Ack(), ArrivedReply, within_seconds=60.0)
        assert not back.reached


@pytest.mark.usefixtures("real_time")
async def test_a_connection_without_a_header_is_closed(monkeypatch):
    async with wires("back", "eve") as (back, eve), contextlib.AsyncExitStack() as held:
        monkeypatch.setattr(wire, "HEADER_SECONDS", 0.2)
        for said in (b"", b"\x00\x00\x10\x00half"):
            reader, writer = await held.enter_async_context(connected(eve, back))
            writer.write(said)
            assert await reader.read() == b""
        assert (back.reached, back.refused) == ([], [])


# --- one credential ------------------------------------------------------------------------------


async def test_one_credential_has_so_many_connections_and_leaves_the_rest_to_others(monkeypatch):
    """Idle polls of three credentials used up the open files, and nobody else could join."""
    monkeypatch.setattr(limits, "MAX_CONNECTIONS", 3)
    async with wires("back", "eve", "ana") as (back, eve, ana):
        goes_on = asyncio.Event()

        async def slow(body, request):
            await goes_on.wait()
            return ArrivedReply(senders=()), b""

        back.register("arrived", ArrivedRequest, slow)

        def ask(who):
            return who.ask(back.address, "arrived", ARRIVED, ArrivedReply, within_seconds=20.0)

        held = [asyncio.ensure_future(ask(eve)) for _ in range(3)]
        while sum(back._open_requests._connections.values()) < 3:
            await asyncio.sleep(0.01)
        other = await wire_of(eve.credential)  # another session of the same
        for who in (eve, other):
            with pytest.raises(SwarmRefuses, match="has 3 connections open here"):
                await ask(who)
        held.append(asyncio.ensure_future(ask(ana)))
        await asyncio.sleep(0.2)
        goes_on.set()
        await asyncio.gather(*held)
        await ask(eve)
        await other.transport.close()
    assert not back._open_requests._connections


def test_of_few_open_files_no_credential_has_more_than_a_share(monkeypatch):
    monkeypatch.setattr(limits, "file_limit", lambda: limits.OTHER_FILES + 5 * limits.SHARES)
    requests = limits.OpenRequests()
    with contextlib.ExitStack() as held:
        for _ in range(5):
            held.enter_context(requests.connection("eve"))
        with pytest.raises(SwarmRefuses, match="has 5 connections"):
            held.enter_context(requests.connection("eve"))
        held.enter_context(requests.connection("ana"))


async def test_one_credential_lends_so_many_machines_and_another_one_more(group, monkeypatch):
    """Two thousand sessions of one credential were members."""
    monkeypatch.setattr(limits, "MAX_SESSIONS", 3)
    eve = issue("eve")
    for number in range(3):
        await group.join(f"eve-{number}", credential=eve)
    with pytest.raises(SwarmRefuses, match="this credential lends 3 machines already"):
        await group.join("one more", credential=eve)
    await group.join("ana")
    assert len(group.leader.group.members) == 4
    await group.kill("eve-0")
    await asyncio.sleep(limits.SESSION_SECONDS + 1.0)
    await group.join("one more", credential=eve)


async def test_so_many_payloads_of_a_session_are_read_at_a_time_and_anothers_beside_them():
    async with wires("back", "eve", "ana") as (back, eve, ana):
        inside, goes_on = [], asyncio.Event()
        twin = await wire_of(eve.credential)  # machines that share a credential do not wait

        async def slow(body, request):
            inside.append(request.sender)
            await goes_on.wait()
            return Ack(), b""

        back.register("push", SliceRequest, slow, admits=admitted)
        asked = [pushed(eve, back, b"part") for _ in range(6)]
        while len(inside) < limits.MAX_PAYLOADS:
            await asyncio.sleep(0.01)
        asked += [pushed(who, back, b"part") for who in (ana, twin)]
        while not {ana.name, twin.name} <= set(inside):
            await asyncio.sleep(0.01)
        assert inside.count(eve.name) == limits.MAX_PAYLOADS
        goes_on.set()
        await asyncio.gather(*asked)
        assert inside.count(eve.name) == 6
        await twin.transport.close()


# --- dialling back -------------------------------------------------------------------------------


async def test_a_volunteer_is_dialled_at_the_host_it_is_seen_at_and_nowhere_else():
    async with wires("back", "ana", "eve") as (back, ana, eve):
        request = functools.partial(wire.PeerRequest, ana.name, ana.credential.certificate, b"")
        elsewhere = f"192.0.2.1:{ana.address.rpartition(':')[2]}"
        assert await back.reached_at(elsewhere, request(source="127.0.0.1")) == ana.address
        dialled = []
        back.transport.open = noting(back.transport.open, dialled)
        for source in ("192.0.2.7", "", "no host"):
            assert await back.reached_at(ana.address, request(source=source)) is None
        assert dialled == ["192.0.2.7:" + ana.address.rpartition(":")[2]]
        assert await back.reached_at(eve.address, request(source="127.0.0.1")) is None
        for odd in ("a..b:1", "\0:1", "/ip4/::/tcp/99999"):
            assert await back.reached_at(odd, request(source="127.0.0.1")) is None
        # A backbone knows its own name.
        named = wire.PeerRequest(back.name, back.credential.certificate, b"", source="192.0.2.7")
        assert await ana.reached_at(back.address, named) == back.address


def noting(open_stream, dialled):
    async def opens(address):
        dialled.append(address)
        if not address.startswith("127."):
            raise ConnectionRefusedError
        return await open_stream(address)

    return opens


# --- the link ------------------------------------------------------------------------------------


async def test_a_peer_that_takes_nothing_of_a_reply_is_given_up(monkeypatch):
    monkeypatch.setattr(wire, "CHUNK_SECONDS", 0.5)
    async with wires("back", "ana") as (back, ana):
        ended = asyncio.Event()

        async def answer(body, question):
            return ArrivedReply(senders=()), bytes(16 << 20)  # more than sockets' buffers hold

        back.register("slice_mean", SliceRequest, answer)
        reply = back._answer

        async def noted(*arguments):
            try:
                await reply(*arguments)
            finally:
                ended.set()

        back._answer = noted
        async with connected(ana, back) as (_, writer):
            header = wire.Request("slice_mean", msgspec.msgpack.encode(FETCH), ana.name, "")
            await ana._send(writer, msgspec.msgpack.encode(header), b"")
            async with asyncio.timeout(10):
                await ended.wait()


async def test_transfers_keep_to_the_rate_limit_and_short_requests_do_not_wait_for_them():
    async with wires("back", "ana") as (back, ana):
        ana.meter = LinkMeter(1e6)
        started = time.monotonic()
        await fetched(ana, back, bytes(500_000))
        assert time.monotonic() - started > 0.9, "half a megabyte each way at one a second"
        ana.meter = back.meter = LinkMeter(50_000.0)
        await fetched(ana, back)
        long = asyncio.ensure_future(fetched(ana, back, bytes(200_000)))
        await asyncio.sleep(0.3)
        started, free_at = time.monotonic(), ana.meter._free_at["up"]
        for _ in range(20):
            await fetched(ana, back)
        assert time.monotonic() - started < 1.0
        assert not long.done()
        assert ana.meter._free_at["up"] > free_at + 20 * 40 / 50_000, "payloads wait for it"
        long.cancel()


async def test_what_comes_slowly_is_waited_for_and_what_stops_coming_is_not(monkeypatch):
    monkeypatch.setattr(wire, "CHUNK_SECONDS", 1.0)
    async with wires("back", "ana") as (back, ana):
        content = bytes(600_000)

        async def answer(body, question):
            return ArrivedReply(senders=()), content

        back.register("slice_mean", SliceRequest, answer)
        back.meter = LinkMeter(300_000.0)  # two seconds, 0.4 of them for each chunk
        _, got = await fetched(ana, back, within_seconds=1.0)
        assert got == content
        back.meter = LinkMeter(50_000.0)
        started = time.monotonic()
        with pytest.raises(TimeoutError):
            await fetched(ana, back, within_seconds=1.0)
        assert time.monotonic() - started < 2.5
