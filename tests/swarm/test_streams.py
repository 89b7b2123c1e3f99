"""TLS by credentials: who is let in, what is read of others, and who is given up."""

import asyncio
import contextlib
import socket
import ssl
import time
from types import SimpleNamespace

import pytest

from dipaco.errors import CannotListen
from dipaco.swarm.errors import BadAddress, BadCredential, TlsRefused
from dipaco.swarm.network import addresses, streams
from dipaco.swarm.network.credentials import Authority, context
from dipaco.swarm.network.streams import Streams, certificate_at
from tests.support.swarm_rig import HERE, issue

OTHER_RUN = Authority(b"2" * 32)


class Served:
    """A backbone that only counts what gets through to it."""

    def __init__(self):
        self.streams, self.content, self.writers = 0, b"", asyncio.Queue()

    async def handle(self, reader, writer):
        self.streams += 1
        await self.writers.put(writer)
        self.content += await reader.read(1000)

    async def __aenter__(self):
        self.transport = await Streams.start(issue("back", "backbone"), self.handle, listen=HERE)
        self.address = self.transport.address
        return self

    async def __aexit__(self, *error):
        await self.transport.close()

    def dial(self, **more):
        """A connection without a credential."""
        return asyncio.open_connection(*addresses.parse(self.address), **more)


async def is_closed(reader):
    """Whether the other end has closed, whatever alert it sent before."""
    with contextlib.suppress(OSError):
        async with asyncio.timeout(20):
            while await reader.read(1000):
                pass
    return True


async def test_each_end_knows_the_other_and_a_silent_one_is_probed():
    async with Served() as served:
        _, dialled = await (await Streams.start(issue("ana"))).open(served.address)
        answered = await served.writers.get()
        assert certificate_at(dialled)[1:3] == ("back", "backbone")
        assert certificate_at(answered)[1:3] == ("ana", "volunteer")
        for writer in (dialled, answered):
            connection = writer.get_extra_info("socket")
            assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        dialled.close()


async def test_a_credential_of_another_run_is_refused_by_both_ends():
    async with Served() as served:
        eve = OTHER_RUN.issue("eve", "backbone", time.time(), 1.0)
        with pytest.raises(TlsRefused, match="not of the run"):
            await (await Streams.start(eve)).open(served.address)
        # One that would trust any:
        for careless in (
            context(eve, ssl.PROTOCOL_TLS_CLIENT),
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
        ):
            careless.check_hostname, careless.verify_mode = False, ssl.CERT_NONE
            reader, writer = await served.dial(ssl=careless)
            writer.write(b"payload")
            assert await is_closed(reader)
            writer.close()
        assert (served.streams, served.content) == (0, b"")


async def test_an_expired_credential_gets_a_sentence_here_and_nothing_there(monkeypatch):
    async with Served() as served:
        expired = issue("ana", days=1.0, now=time.time() - 3 * 86400)
        with pytest.raises(BadCredential, match=r"has expired, on 20.*Ask for a new one"):
            await Streams.start(expired)
        # Its clock may be wrong, and the other end's right:
        monkeypatch.setattr(streams, "check_not_expired", lambda credential: None)
        reader, writer = await Streams(expired).open(served.address)
        writer.write(b"payload")
        assert await is_closed(reader)
        assert served.streams == 0
        late = issue("back", "backbone", days=1.0, now=time.time() - 3 * 86400)
        there = await Streams.start(late, served.handle, listen=HERE)
        with pytest.raises(TlsRefused, match="look at both clocks"):
            await (await Streams.start(issue("ana"))).open(there.address)
        await there.close()


async def test_plain_tcp_and_garbage_are_closed_unread_and_a_port_without_tls_is_named():
    async with Served() as served:
        for content in (
            b"\x00\x00\x00\x10" + b"x" * 16,
            b"GET / HTTP/1.1\r\n\r\n",
            b"\x16\x03",
        ):
            reader, writer = await served.dial()
            writer.write(content)
            writer.write_eof()
            assert await is_closed(reader)
            writer.close()
        assert served.streams == 0

    async def plain(reader, writer):
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(plain, "127.0.0.1") as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(OSError, match=r"does not speak TLS|handshake"):
            await (await Streams.start(issue("ana"))).open(f"127.0.0.1:{port}")


async def test_a_dial_that_is_given_up_as_it_succeeds_is_hung_up(monkeypatch):
    """Asked to leave, a peer cancels what it does, at any moment."""
    dials, hung_up = await Streams.start(issue("ana")), []
    answered = asyncio.get_running_loop().create_future()

    async def dialled(where):
        await answered
        return None, SimpleNamespace(transport=SimpleNamespace(abort=lambda: hung_up.append(True)))

    monkeypatch.setattr(dials, "_dial", dialled)
    opening = asyncio.ensure_future(dials.open("127.0.0.1:1"))
    await asyncio.sleep(0.01)
    answered.set_result(None)
    await asyncio.sleep(0)  # the connection is there, and `open` does not know it yet
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert hung_up == [True]
    await dials.close()


async def test_half_open_handshakes_end_and_hold_up_no_other(monkeypatch):
    monkeypatch.setattr(streams, "MAX_HANDSHAKES", 2)
    monkeypatch.setattr(streams, "HANDSHAKE_SECONDS", 1000.0)
    async with Served() as served:
        silent = [await served.dial() for _ in range(4)]
        ana = await Streams.start(issue("ana"))
        _, writer = await ana.open(served.address)
        writer.write(b"payload")
        writer.write_eof() if writer.can_write_eof() else writer.close()
        for reader, _ in silent[:2]:
            assert await is_closed(reader), "of more than it holds, the oldest is given up"
        monkeypatch.setattr(streams, "HANDSHAKE_SECONDS", 0.1)
        late, writing = await served.dial()
        writing.write(b"\x16\x03\x01")  # the beginning of one
        assert await is_closed(late), "in time"
        assert served.content == b"payload"
        for _, writer in (*silent, (late, writing)):
            writer.close()


async def test_half_open_handshakes_of_one_host_end_no_other_host_s(monkeypatch):
    monkeypatch.setattr(streams, "MAX_HOST_HANDSHAKES", 2)
    async with Served() as served:
        other, of_other = await served.dial(local_addr=("127.0.0.2", 0))
        silent = [await served.dial() for _ in range(5)]
        for reader, _ in silent[:3]:
            assert await is_closed(reader)
        assert not other.at_eof()
        for writer in (of_other, *(writer for _, writer in silent)):
            writer.close()


@pytest.mark.parametrize(
    ("hosts", "is_one"),
    [
        (("10.0.0.1", "10.0.0.2"), False),
        (("10.0.0.1", "::ffff:10.0.0.1"), True),
        (("2001:db8::1", "2001:db8::2"), True),
        (("2001:db8::1", "2001:db8:0:1::1"), False),
    ],
)
def test_a_host_of_version_6_is_as_large_as_what_one_person_is_given(hosts, is_one):
    assert (len(set(map(addresses.network_of, hosts))) == 1) is is_one


async def test_a_machine_that_does_not_answer_is_given_up_before_the_request_would_be(monkeypatch):
    monkeypatch.setattr(streams, "CONNECT_SECONDS", 0.2)
    dials = await Streams.start(issue("ana"))
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
                await dials.open(f"127.0.0.1:{silent.getsockname()[1]}")
    await dials.close()


async def test_a_port_in_use_is_an_error_and_the_address_is_the_announced_one():
    async def serve(reader, writer): ...

    with socket.create_server(("127.0.0.1", 0)) as used:
        where = f"127.0.0.1:{used.getsockname()[1]}"
        with pytest.raises(CannotListen, match="another `--listen`"):
            await Streams.start(issue("ana"), serve, listen=where)
    listens = await Streams.start(issue("ana"), serve, announce="ana.example")
    assert addresses.parse(listens.address).host == "ana.example"
    await listens.close()


def test_what_is_no_address_is_refused_and_any_other_is_written_as_it_was_read():
    for given in (
        "host", "host:1/xyz", "host:65536", "tcp://host:1", "::1:1", "[::1:1", "h/o:1", "host:1\n",
        "a..b:1", f"{'x' * 100}:1", "\0:1", "/ip4/::/tcp/99999",
    ):  # fmt: skip
        with pytest.raises(BadAddress):
            addresses.parse(given)
    for given in ("[2001:db8::1]:7", "0.0.0.0:0", "127.0.0.1:65535", "swarm.example.org:1"):
        assert str(addresses.parse(given)) == given
