"""Peers without a credential cost a peer neither memory nor time, and reach no terminal."""

import asyncio
import contextlib
import functools
import time

import pytest

from dipaco.swarm.errors import MessageRefused, SwarmRefuses
from dipaco.swarm.network.credentials import Authority, Signer, Verifier, printable
from dipaco.swarm.network.link_meter import LinkMeter
from dipaco.swarm.network.messages import Ack, MeanReply, MeanRequest
from dipaco.swarm.network.transport import Tcp
from dipaco.swarm.network.wire import Wire
from tests.support.swarm_rig import admitted, issue

pytestmark = pytest.mark.usefixtures("real_time")

MOST_BYTES = 1 << 20
FETCH = MeanRequest(round_number=1, step=2, start=3, stop=4)


def wire_of(credential, name=None):
    signer = Signer(credential, time.time)
    signer.name = name or signer.name
    return Wire(signer, Verifier(credential.authority, "run", signer.name, time.time), MOST_BYTES)


@contextlib.asynccontextmanager
async def serving():
    """A backbone, its transport, what it refused, and what reached it."""
    back = wire_of(issue("back", "backbone"))
    refused, reached = [], []
    back.on_refused = lambda sender, reason: refused.append((sender, reason))

    async def answer(body, question):
        reached.append(question)
        return MeanReply(), b""

    back.register("slice_mean", MeanRequest, answer, admits=admitted)
    back.transport = await Tcp.start(back.serve)
    try:
        yield back, refused, reached
    finally:
        await back.transport.close()


@pytest.fixture
def served():
    return serving()


async def test_a_strangers_payload_is_never_read(served):
    back, refused, reached = served
    eve = wire_of(Authority(bytes(32), "run").issue("eve", "volunteer", time.time(), 1.0))
    sent = []
    eve.meter.wait = lambda direction, num_bytes: _noted(sent, num_bytes)
    async with connected(back) as (_, writer):
        # 64 MB: more than sockets hold, so it can only go out as far as it is read.
        with pytest.raises(OSError, match=r"reset|pipe|lost"):
            await eve._send(writer, "slice_mean", FETCH, bytes(64 << 20), recipient="")
    assert sum(sent) < 32 << 20
    assert refused == [(eve.name, "its credential was not issued by this run")]
    assert not reached
    assert back.meter.bytes_down < 10_000


@contextlib.asynccontextmanager
async def connected(back):
    """A connection to a peer, closed when the test ends."""
    host, port = back.address.removeprefix("tcp://").split(":")
    reader, writer = await asyncio.open_connection(host, port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _noted(sent, num_bytes):
    sent.append(num_bytes)


async def test_a_members_payload_is_no_larger_than_the_limit_and_the_one_that_was_signed(served):
    back, refused, reached = served
    ana = wire_of(issue("ana"))
    ana.transport = await Tcp.start(None)

    def asked(content):
        return ana.ask(
            back.address, "slice_mean", FETCH, MeanReply, payload=content, within_seconds=60.0
        )

    await asked(bytes(MOST_BYTES))
    back.max_payload_bytes = 100
    with pytest.raises((SwarmRefuses, OSError)):
        await asked(bytes(101))
    assert refused[-1][1].startswith("A message cannot be understood: it would bring 101")

    async with connected(back) as (reader, writer):
        whole = writer.write
        writer.write = lambda content: whole(content.replace(b"rows", b"ROWS"))
        await ana._send(writer, "slice_mean", FETCH, b"rows", recipient=back.name)
        await reader.read()
    assert "not the one that was signed" in refused[-1][1]
    assert len(reached) == 1


async def test_a_request_names_its_recipient_and_no_other_peer_takes_it(served):
    back, refused, reached = served
    ana, seal, named = wire_of(issue("ana")), None, []
    ana.transport = await Tcp.start(None)
    seal = ana._signer.seal
    ana._signer.seal = lambda content, recipient: (
        named.append(recipient) or seal(content, recipient)
    )
    ask = functools.partial(
        ana.ask, back.address, "slice_mean", FETCH, MeanReply, within_seconds=60.0
    )
    await ask()
    await ask()
    assert named == ["", back.name, back.name], "its name is asked for once"
    async with connected(back) as (reader, writer):
        await ana._send(writer, "slice_mean", FETCH, b"", recipient="")
        await reader.read()
    assert "names no recipient" in refused[-1][1]
    assert len(reached) == 2
    # Another session at the same address: it takes nothing that was for the last one.
    back.name = back.verifier._name = back._signer.name = "back/12345678"
    refused.clear()
    await ask()
    assert named[-2:] == ["", "back/12345678"]
    assert not refused
    assert len(reached) == 3
    with pytest.raises(SwarmRefuses, match="for another recipient"):
        await ask(recipient="back/00000000")


async def test_a_connection_without_a_header_is_closed(served, monkeypatch):
    monkeypatch.setattr("dipaco.swarm.network.wire.HEADER_SECONDS", 0.2)
    back, refused, _ = served
    for said in (b"", b"\x00\x00\x10\x00half"):
        async with connected(back) as (reader, writer):
            writer.write(said)
            assert await reader.read() == b""
    assert not refused


async def test_of_many_connections_without_a_header_the_oldest_is_closed_and_members_are_served(
    monkeypatch,
):
    monkeypatch.setattr("dipaco.swarm.network.wire.MAX_UNKNOWN", 3)
    async with serving() as (back, refused, reached), contextlib.AsyncExitStack() as open_ones:
        ana = wire_of(issue("ana"))
        ana.transport = await Tcp.start(None)
        silent = [await open_ones.enter_async_context(connected(back)) for _ in range(5)]
        for reader, _ in silent[:2]:
            assert await reader.read() == b""
        await ana.ask(back.address, "slice_mean", FETCH, MeanReply, within_seconds=60.0)
        assert await silent[2][0].read() == b""
        assert not any(reader.at_eof() for reader, _ in silent[3:])
        assert (len(reached), refused) == (1, [])


async def test_strangers_use_up_nothing_of_the_rate_limit_and_send_no_long_headers(served):
    back, refused, reached = served
    back.meter = LinkMeter(1000.0)
    eve = wire_of(Authority(bytes(32), "run").issue("eve", "volunteer", time.time(), 1.0))
    eve.transport = await Tcp.start(None)
    long = "slice_mean" + "h" * 100_000  # 100 seconds of the rate limit
    with pytest.raises(MessageRefused, match="back"):  # nor does she accept ours
        await eve.ask(
            back.address, long, FETCH, MeanReply, within_seconds=60.0, recipient=back.name
        )
    assert refused == [(eve.name, "its credential was not issued by this run")]
    assert back.meter.bytes_down == 0
    method = "h" * (600 << 10)
    with pytest.raises(OSError, match=r"hung up|reset|lost"):
        await eve.ask(
            back.address, method, FETCH, MeanReply, within_seconds=60.0, recipient=back.name
        )
    assert (len(refused), reached) == (1, [])


@pytest.mark.parametrize("name", ["ana/\x1b[2J\x1b[31mback", "ana/1234", "ana", "eve/0123abcd"])
async def test_a_senders_name_is_that_of_its_credential_and_a_session(served, name):
    back, refused, reached = served
    eve = wire_of(issue("ana"), name)
    eve.transport = await Tcp.start(None)
    with pytest.raises(SwarmRefuses, match="the credential of ana"):
        await eve.ask(back.address, "slice_mean", FETCH, MeanReply, within_seconds=60.0)
    ((sender, _),) = refused
    assert sender.isprintable()
    assert not reached


async def test_a_strangers_text_holds_no_control_characters(served):
    back, refused, _ = served
    ana = wire_of(issue("ana"))
    ana.transport = await Tcp.start(None)
    with pytest.raises(SwarmRefuses) as caught:
        await ana.ask(back.address, "\x1b[2J\r\nok", Ack(), MeanReply, within_seconds=60.0)
    for text in (refused[0][1], str(caught.value)):
        assert "there is no method" in text
        assert text.isprintable()
    assert printable("x" * 1000) == "x" * 200
