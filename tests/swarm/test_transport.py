"""One contract for all transports: requests get replies, and a peer that hangs up is noticed."""

import asyncio
import contextlib
import functools
import socket
import time

import pytest

from dipaco.swarm.errors import MessageRefused, SwarmRefuses
from dipaco.swarm.network import transport
from dipaco.swarm.network.credentials import Signer, Verifier
from dipaco.swarm.network.link_meter import LinkMeter
from dipaco.swarm.network.messages import Ack, ArrivedRequest, MeanReply, MeanRequest
from dipaco.swarm.network.transport import start_transport
from dipaco.swarm.network.wire import Wire
from tests.support.swarm_rig import admitted, issue

FETCH = MeanRequest(round_number=1, step=2, start=3, stop=4)
LIKES = {
    "tls": "tls://127.0.0.1:0",
    "tcp": "tcp://127.0.0.1:0",
}


@pytest.fixture(params=LIKES.values(), ids=LIKES)
def like(request):
    return request.param


def wire_for(name, role="volunteer", meter=None):
    given = issue(name, role)
    signer = Signer(given, time.time)
    wire = Wire(signer, Verifier(given.authority, "run", signer.name, time.time), 1 << 24, meter)
    wire.credential = given
    return wire


async def pair(like):
    """A backbone that echoes, and a client."""
    back, ana = wire_for("back", "backbone"), wire_for("ana")
    hung_up = asyncio.Event()

    async def echo(body, question):
        return MeanReply(digest=question.sender.encode()), question.payload[::-1]

    async def never(body, question):
        try:
            await asyncio.sleep(1000)
        finally:
            hung_up.set()

    back.register("slice_mean", MeanRequest, echo, admits=admitted)
    back.register("arrived", ArrivedRequest, never)
    back.transport = await start_transport(like, back.serve, credential=back.credential)
    ana.transport = await start_transport(
        back.address, None, bootstrap=(back.address,), credential=ana.credential
    )
    return back, ana, hung_up


def test_requests_get_replies_and_a_peer_that_hangs_up_is_noticed(like):
    async def scenario():
        back, ana, hung_up = await pair(like)
        assert ana.address is None, "a client only dials out"
        content = bytes(range(256)) * 2000
        mean, got = await ana.ask(
            back.address, "slice_mean", FETCH, MeanReply, payload=content, within_seconds=60.0
        )
        assert (mean.digest.decode(), got) == (ana.name, content[::-1])
        assert ana.meter.bytes_up > len(content) < back.meter.bytes_down
        with pytest.raises(SwarmRefuses, match="there is no method `nonsense`"):
            await ana.ask(back.address, "nonsense", Ack(), Ack, within_seconds=60.0)
        asking = ArrivedRequest(round_number=1)
        with pytest.raises(TimeoutError):
            await ana.ask(back.address, "arrived", asking, Ack, within_seconds=1.0)
        async with asyncio.timeout(10):
            await hung_up.wait()
        await ana.transport.close()
        await back.transport.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("like", [LIKES["tls"], LIKES["tcp"]], ids=["tls", "tcp"])
async def test_a_machine_that_vanishes_is_noticed_on_a_connection_on_which_nothing_is_sent(like):
    served = asyncio.Queue()

    async def serve(reader, writer):
        await served.put(writer)
        await reader.read()

    back, ana = wire_for("back", "backbone"), wire_for("ana")
    listens = await start_transport(like, serve, credential=back.credential)
    dials = await start_transport(
        listens.address, None, bootstrap=(listens.address,), credential=ana.credential
    )
    _, dialled = await dials.open(listens.address)
    for writer in (dialled, await served.get()):
        connection = writer.get_extra_info("socket")
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    dialled.close()
    await dials.close()
    await listens.close()


async def test_a_peer_that_takes_nothing_of_a_reply_is_given_up(monkeypatch):
    monkeypatch.setattr("dipaco.swarm.network.framing.CHUNK_SECONDS", 0.5)
    back, ana, _ = await pair("tcp://127.0.0.1:0")
    ended = asyncio.Event()

    async def answer(body, question):
        return MeanReply(), bytes(16 << 20)  # more than the buffers of sockets hold

    back.register("slice_mean", MeanRequest, answer)
    reply = back._reply

    async def noting(*arguments):
        try:
            await reply(*arguments)
        finally:
            ended.set()

    back._reply = noting
    _, writer = await ana.transport.open(back.address)
    await ana._send(writer, "slice_mean", FETCH, b"", recipient=back.name)
    async with asyncio.timeout(10):
        await ended.wait()
    writer.close()
    await back.transport.close()


async def test_a_reply_of_a_peer_that_is_no_backbone_is_refused():
    eve, ana = wire_for("eve"), wire_for("ana")

    async def answer(body, question):
        return Ack(), b""

    eve.register("slice_mean", MeanRequest, answer)
    eve.transport = await start_transport("tcp://127.0.0.1:0", eve.serve)
    ana.transport = await start_transport(eve.address, None)
    with pytest.raises(MessageRefused, match="is no backbone"):
        await ana.ask(
            eve.address,
            "slice_mean",
            FETCH,
            Ack,
            within_seconds=10.0,
            from_backbone=True,
        )
    await eve.transport.close()


async def test_transfers_keep_to_the_rate_limit():
    back, ana, _ = await pair("tcp://127.0.0.1:0")
    ana.meter = LinkMeter(1e6)
    started = time.monotonic()
    await ana.ask(
        back.address,
        "slice_mean",
        FETCH,
        MeanReply,
        payload=bytes(500_000),
        within_seconds=30.0,
    )
    assert time.monotonic() - started > 0.9, "half a megabyte each way at one a second"
    await back.transport.close()


async def test_a_short_request_does_not_wait_behind_payloads_and_what_it_used_is_kept_to_later():
    back, ana, _ = await pair("tcp://127.0.0.1:0")
    ana.meter = back.meter = LinkMeter(50_000.0)
    ask = functools.partial(
        ana.ask, back.address, "slice_mean", FETCH, MeanReply, within_seconds=60.0
    )
    await ask()
    long = asyncio.ensure_future(ask(payload=bytes(200_000)))
    await asyncio.sleep(0.3)
    started, free_at = time.monotonic(), ana.meter._free_at["up"]
    for _ in range(20):
        await ask()
    assert time.monotonic() - started < 1.0
    assert not long.done()
    assert ana.meter._free_at["up"] > free_at + 20 * 400 / 50_000, "payloads wait for it"
    long.cancel()
    await ana.transport.close()
    await back.transport.close()


async def test_what_comes_slowly_is_waited_for_and_what_stops_coming_is_not(monkeypatch):
    monkeypatch.setattr("dipaco.swarm.network.framing.CHUNK_SECONDS", 1.0)
    back, ana, _ = await pair("tcp://127.0.0.1:0")
    content = bytes(600_000)

    async def answer(body, question):
        return MeanReply(), content

    back.register("slice_mean", MeanRequest, answer)
    back.meter = LinkMeter(300_000.0)  # two seconds, 0.4 of them for each chunk
    asking = lambda: ana.ask(  # noqa: E731
        back.address, "slice_mean", FETCH, MeanReply, within_seconds=1.0
    )
    _, got = await asking()
    assert got == content
    back.meter = LinkMeter(50_000.0)
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        await asking()
    assert time.monotonic() - started < 2.5
    await ana.transport.close()
    await back.transport.close()


async def test_a_machine_that_does_not_answer_is_given_up_before_the_request_would_be(monkeypatch):
    monkeypatch.setattr(transport, "CONNECT_SECONDS", 0.2)
    opened = await start_transport("tcp://127.0.0.1:0", None)
    with contextlib.ExitStack() as stack:
        # It takes no further connection: what asks for one is dropped.
        silent = stack.enter_context(socket.socket())
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(silent.getsockname())
        async with asyncio.timeout(30):
            with pytest.raises(TimeoutError):
                await opened.open(f"tcp://127.0.0.1:{silent.getsockname()[1]}")
    await opened.close()
