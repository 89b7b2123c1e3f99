"""What a backbone passes on from a sender to a reducer: all of it, as the sender has signed it."""

import asyncio
import contextlib

import pytest

from dipaco.swarm.errors import SwarmRefuses
from dipaco.swarm.network import wire
from dipaco.swarm.network.messages import Ack, MeanReply, PushRequest, RelayRequest
from dipaco.swarm.network.relay import RELAY, FarEnd, Relay
from tests.support.swarm_rig import admitted, issue, wire_of

PUSH = PushRequest(round_number=1, step=2, start=3, stop=4)
REQUEST = RelayRequest(round_number=1, reducer="bo/1")
CONTENT = bytes(range(256)) * 2000  # more than is passed on at a time


@pytest.fixture
def relayed(monkeypatch):
    """`relayed(scenario)`: runs it with a sender that asks a reducer through a backbone. Its reply
    has a payload, as none that is passed on has, to see it pass whole.
    """
    monkeypatch.setattr(wire, "WITH_CONTENT", {"push"})

    async def all_of_it(scenario, role, refusal):
        back, ana, bo = await wire_of(issue("back", role)), await wire_of(issue("ana")), None
        bo = await wire_of(issue("bo"))
        got = []

        async def relay(body, request):
            if refusal:
                raise SwarmRefuses(reason=refusal)
            return Ack(), FarEnd(*await back.transport.open(bo.address))

        async def take(body, request):
            got.append(request)
            return MeanReply(digest=b"it"), request.payload[::-1]

        back.register(RELAY, RelayRequest, relay)
        bo.register("push", PushRequest, take, admits=admitted)

        def ask(**more):
            return ana.ask(
                bo.address,
                "push",
                PUSH,
                MeanReply,
                payload=more.pop("payload", CONTENT),
                within_seconds=20.0,
                recipient=more.pop("recipient", bo.name),
                through=Relay(back.address, back.name, REQUEST),
            )

        try:
            await scenario(ask, ana, bo, back, got)
        finally:
            for wire in (back, ana, bo):
                await wire.transport.close()

    return lambda scenario, role="backbone", refusal="": asyncio.run(
        all_of_it(scenario, role, refusal)
    )


def test_a_request_and_its_reply_pass_whole_and_the_reducer_can_show_what_the_sender_signed(
    relayed,
):
    async def scenario(ask, ana, bo, back, got):
        reply, content = await ask()
        assert (reply.digest, content) == (b"it", CONTENT[::-1])
        (request,) = got
        assert (request.sender, request.payload) == (ana.name, CONTENT)
        signed, body = back.opened(request.header, PushRequest)
        assert (signed.sender, body) == (ana.name, PUSH)
        assert min(back.meter.bytes_up, back.meter.bytes_down) > 2 * len(CONTENT)

    relayed(scenario)


def test_what_is_meant_for_another_session_is_taken_by_none(relayed):
    async def scenario(ask, ana, bo, back, got):
        with pytest.raises(SwarmRefuses, match="another recipient"):
            await ask(recipient="bo/00000000", payload=b"")
        assert not got

    relayed(scenario)


@pytest.mark.parametrize("why", ["refused", "no backbone", "gone"])
def test_where_nothing_is_passed_on_there_is_no_connection(relayed, why):
    async def scenario(ask, ana, bo, back, got):
        if why == "gone":
            await bo.transport.close()
        with pytest.raises(Exception) as caught:  # noqa: PT011
            await ask()
        expected = ConnectionRefusedError if why == "refused" else Exception
        assert isinstance(caught.value, expected)
        assert not got

    role = "volunteer" if why == "no backbone" else "backbone"
    relayed(scenario, role, "only parts of a round" if why == "refused" else "")


def test_no_stream_to_a_reducer_is_left_when_the_sender_hangs_up(relayed):
    async def scenario(ask, ana, bo, back, got):
        opened = []
        open_stream = back.transport.open

        async def note(address):
            opened.append(await open_stream(address))
            return opened[-1]

        back.transport.open = note
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(20.0):
                await ask()
        async with asyncio.timeout(20.0):
            while not opened[0][1].is_closing():
                await asyncio.sleep(0.01)

    relayed(scenario)
