"""TLS by credentials: who is let in, what is read of others, and which address is announced."""

import asyncio
import ssl
import time
from types import SimpleNamespace

import msgspec
import pytest

from dipaco.swarm.errors import BadAddress, BadCredential, TlsRefused
from dipaco.swarm.network import addresses, tls
from dipaco.swarm.network.addresses import SocketAddress
from dipaco.swarm.network.credentials import Authority, Signer, Verifier, load_credential
from dipaco.swarm.network.leader_connection import LeaderConnection
from dipaco.swarm.network.messages import Ack, LeaveRequest, SettingsRequest
from dipaco.swarm.network.tls import Tls
from dipaco.swarm.network.transport import Tcp
from dipaco.swarm.network.wire import Wire
from dipaco.swarm.network.x509 import fingerprint
from tests.support.swarm_rig import issue

HERE = "tls://127.0.0.1:0"
OTHER_RUN = Authority(b"2" * 32, "other run")
LEAVE = LeaveRequest(step=0, lineage="", blocks=())


class Served:
    """A backbone that only counts what gets through to it."""

    def __init__(self):
        self.streams, self.content = 0, b""

    async def handle(self, reader, writer):
        self.streams += 1
        self.content += await reader.read(1000)

    async def __aenter__(self):
        self.credential = issue("back", "backbone")
        self.transport = await Tls.start(self.handle, self.credential, listen=HERE)
        self.address = self.transport.address
        return self

    async def __aexit__(self, *error):
        await self.transport.close()

    def dial(self):
        """A plain connection."""
        return asyncio.open_connection("127.0.0.1", addresses.parse(self.address).port)


async def wire_on_tls(credential, **named):
    signer = Signer(credential, time.time)
    certificate = credential.certificate
    verifier = Verifier(credential.authority, certificate.group, signer.name, time.time)
    wire = Wire(signer, verifier, 1 << 20)
    wire.transport = await Tls.start(wire.serve, credential, **named)
    return wire


async def is_closed(reader):
    """Whether the other end has closed, whatever alert it sent before."""
    try:
        async with asyncio.timeout(20):
            while await reader.read(1000):
                pass
    except ConnectionError:
        pass
    return True


async def test_a_machine_with_another_key_is_not_spoken_to():
    async with Served() as served:
        where = addresses.parse(served.address)
        ana = await Tls.start(None, issue("ana"))
        false = str(where._replace(fingerprint="0" * 32))
        with pytest.raises(TlsRefused, match=where.fingerprint) as refused:
            await ana.open(false)
        assert false in str(refused.value)
        await asyncio.sleep(0)
        assert not served.content
        _, writer = await ana.open(served.address)
        writer.close()


async def test_a_joiner_with_a_wrong_fingerprint_is_told_so_at_once():
    async with Served() as served:
        false = str(addresses.parse(served.address)._replace(fingerprint="0" * 32))
        ana = await wire_on_tls(issue("ana"), towards=false)
        leader = LeaderConnection(ana, (false,), print)
        with pytest.raises(TlsRefused, match="not the one of the address"):
            await leader.find("settings", SettingsRequest(computes=True))
        await ana.transport.close()


async def test_a_credential_of_another_run_is_refused_by_both_ends():
    async with Served() as served:
        eve = OTHER_RUN.issue("eve", "volunteer", time.time(), 1.0)
        with pytest.raises(TlsRefused, match="not of the run"):
            await (await Tls.start(None, eve)).open(served.address)
        # One that would trust any:
        for credential in (eve, None):
            careless = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            if credential is not None:
                careless = tls._context(credential, ssl.PROTOCOL_TLS_CLIENT)
            careless.check_hostname, careless.verify_mode = False, ssl.CERT_NONE
            port = addresses.parse(served.address).port
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=careless)
            writer.write(b"payload")
            assert await is_closed(reader)
            writer.close()
        assert (served.streams, served.content) == (0, b"")


async def test_an_expired_credential_gets_a_sentence_here_and_nothing_there(monkeypatch):
    async with Served() as served:
        expired = issue("ana", days=1.0, now=time.time() - 3 * 86400)
        with pytest.raises(BadCredential, match=r"has expired, on 20.*Ask for a new one"):
            await Tls.start(None, expired)
        # Its clock may be wrong, and the other end's right:
        reader, writer = await Tls(expired).open(served.address)
        writer.write(b"payload")
        assert await is_closed(reader)
        assert served.streams == 0
        late = issue("back", "backbone", days=1.0, now=time.time() - 3 * 86400)
        monkeypatch.setattr(tls, "_check", lambda credential: None)
        there = await Tls.start(served.handle, late, listen=HERE)
        with pytest.raises(TlsRefused, match="look at both clocks"):
            await (await Tls.start(None, issue("ana"))).open(there.address)
        await there.close()


async def test_plain_tcp_and_garbage_on_a_port_of_tls_are_closed_unread():
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


async def test_each_end_says_that_the_other_speaks_tls_or_does_not():
    back = await wire_on_tls(issue("back", "backbone"), listen=HERE)
    port = addresses.parse(back.address).port
    ana = await wire_on_tls(issue("ana"))
    plain = Wire(ana._signer, ana.verifier, 1 << 20)
    plain.transport = await Tcp.start(plain.serve)
    hung_up = "hung up.*tls://"
    with pytest.raises(ConnectionError, match=hung_up):
        await plain.ask(f"tcp://127.0.0.1:{port}", "leave", LEAVE, Ack, within_seconds=20.0)
    where = addresses.parse(plain.address)
    false = str(SocketAddress("tls://", "127.0.0.1", where.port, "0" * 32))
    with pytest.raises(ConnectionError, match=r"is it plain TCP \(tcp://\)"):
        await ana.ask(false, "leave", LEAVE, Ack, within_seconds=20.0)
    for wire in (back, ana, plain):
        await wire.transport.close()


async def test_a_dial_that_is_given_up_as_it_succeeds_is_hung_up(monkeypatch):
    """Asked to leave, a peer cancels what it does, at any moment."""
    async with Served() as served:
        dials, hung_up = await Tls.start(None, issue("ana")), []
        answered = asyncio.get_running_loop().create_future()

        class Transport:
            def abort(self):
                hung_up.append(True)

        async def connected(*_, **__):
            await answered
            return None, SimpleNamespace(transport=Transport())

        monkeypatch.setattr(asyncio, "open_connection", connected)
        opening = asyncio.ensure_future(dials.open(served.address))
        await asyncio.sleep(0.01)
        answered.set_result(None)
        await asyncio.sleep(0)  # the connection is there, and `open` does not know it yet
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert hung_up == [True]
        await dials.close()


async def test_half_open_handshakes_end_and_hold_up_no_other(monkeypatch):
    monkeypatch.setattr(tls, "MAX_HANDSHAKES", 2)
    monkeypatch.setattr(tls, "HANDSHAKE_SECONDS", 1000.0)
    async with Served() as served:
        silent = [await served.dial() for _ in range(4)]
        ana = await Tls.start(None, issue("ana"))
        _, writer = await ana.open(served.address)
        writer.write(b"payload")
        writer.write_eof() if writer.can_write_eof() else writer.close()
        for reader, _ in silent[:2]:
            assert await is_closed(reader), "of more than it holds, the oldest is given up"
        monkeypatch.setattr(tls, "HANDSHAKE_SECONDS", 0.1)
        late, writing = await served.dial()
        writing.write(b"\x16\x03\x01")  # the beginning of one
        assert await is_closed(late), "in time"
        assert served.content == b"payload"
        for _, writer in (*silent, (late, writing)):
            writer.close()


async def test_the_address_is_where_a_backbone_has_seen_the_peer(monkeypatch):
    monkeypatch.setattr(addresses, "own_host", lambda towards="": "192.0.2.7")
    back = await wire_on_tls(issue("back", "backbone"), listen=HERE)
    ana = await wire_on_tls(issue("ana"), towards=back.address)
    bo = await wire_on_tls(issue("bo"), listen="tls://0.0.0.0:0", announce="bo.example")
    own = addresses.parse(ana.address)
    assert own.host == "192.0.2.7", "not seen yet"
    assert own.fingerprint == fingerprint(issue_key(ana))
    unseen = str(own._replace(host="127.0.0.1"))
    await ana._greeted(unseen)  # itself, a volunteer: its word is not taken
    assert addresses.parse(ana.address).host == "192.0.2.7"
    for wire in (ana, bo):
        await wire._greeted(back.address)
    assert ana.address == str(own._replace(host="127.0.0.1")), "with the port it listens on"
    await back._greeted(ana.address)
    assert addresses.parse(bo.address).host == "bo.example", "as it was told"
    for wire in (back, ana, bo):
        await wire.transport.close()


def issue_key(wire):
    return wire._signer._credential.certificate.holder


def test_a_backbone_that_is_started_again_keeps_its_key():
    authority = Authority(b"1" * 32, "run")

    def key(authority, worker):
        issued = authority.issue("backbone-0", "backbone", time.time(), 1.0, holder=worker)
        return issued.certificate.holder

    assert key(authority, "one") == key(authority, "one")
    assert len({key(authority, "one"), key(authority, "two"), key(OTHER_RUN, "one")}) == 3
    assert key(authority, "") != key(authority, "")


def test_a_credential_of_an_older_version_is_refused_with_a_sentence(tmp_path):
    content = msgspec.to_builtins(issue("ana"), builtin_types=(bytes,))
    del content["tls_certificate"]
    (tmp_path / "old.pass").write_bytes(msgspec.msgpack.encode(content))
    with pytest.raises(BadCredential, match="no certificate for TLS"):
        asyncio.run(Tls.start(None, load_credential(tmp_path / "old.pass")))


def test_what_is_no_address_is_refused_and_any_other_is_written_as_it_was_read():
    for given in (
        "tls://host",
        "tls://host:1/xyz",
        "tls://host:65536",
        "tls://host:1/" + "A" * 32,
        "tcp://host:1/" + "0" * 32,
        "tls://::1:1",
        "tls://[::1:1",
        "tls://h/o:1",
        "tls://host:1\n",
    ):
        with pytest.raises(BadAddress):
            addresses.parse(given)
    identity = "ab" * 16
    for given in (f"tls://[2001:db8::1]:7/{identity}", "tls://0.0.0.0:0", "tcp://127.0.0.1:65535"):
        assert str(addresses.parse(given)) == given
