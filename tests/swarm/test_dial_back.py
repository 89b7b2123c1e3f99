"""Where a peer is reached: at the address that its backbone sees, or at none."""

import asyncio
import contextlib

import pytest

from dipaco.swarm.network import dial_back
from dipaco.swarm.network.addresses import own_host
from dipaco.swarm.network.dial_back import reached_address, seen_address
from dipaco.swarm.network.wire import PeerRequest
from dipaco.swarm.training.state_holder import StateHolder
from tests.support.swarm_rig import issue, wire_of

ELSEWHERE = "tcp://192.0.2.1"  # TEST-NET-1, which no machine has


@pytest.mark.parametrize(
    ("announced", "host", "seen"),
    [
        ("tcp://192.168.1.2:5", "198.51.100.7", "tcp://198.51.100.7:5"),
        ("tcp://192.168.1.2:5", "::ffff:198.51.100.7", "tcp://198.51.100.7:5"),
        ("tcp://192.168.1.2:5", "2001:db8::1", "tcp://[2001:db8::1]:5"),
        ("/ip4/10.0.0.2/tcp/5/p2p/Qm", "198.51.100.7", "/ip4/198.51.100.7/tcp/5/p2p/Qm"),
        ("/ip4/10.0.0.2/tcp/5/p2p/Qm", "2001:db8::1", "/ip6/2001:db8::1/tcp/5/p2p/Qm"),
        ("/ip4/10.0.0.2/udp/5/quic/p2p/Qm", "198.51.100.7", "/ip4/10.0.0.2/udp/5/quic/p2p/Qm"),
        ("tcp://192.168.1.2:5", "", "tcp://192.168.1.2:5"),
        ("tcp://192.168.1.2:5", "no host", "tcp://192.168.1.2:5"),
    ],
)
def test_the_port_is_the_peers_and_the_host_what_others_see(announced, host, seen):
    assert seen_address(announced, host) == seen


@pytest.fixture
def reached(monkeypatch):
    """`reached(announced_by, host, who)`: where ana is reached that announces an address, her own
    or another's; and what hers is.
    """
    monkeypatch.setattr(dial_back, "DIAL_BACK_SECONDS", 0.5)

    async def scenario(announced_by, host, who):
        peers = {name: await wire_of(issue(name)) for name in ("back", "ana", "eve")}
        for wire in peers.values():
            StateHolder(wire, None)  # answers when it is dialled back
        request = PeerRequest(peers["ana"].name, None, b"", source=host)
        try:
            announced = announced_by(peers[who].address.rpartition(":")[2])
            found = await reached_address(peers["back"], announced, request)
            return found, peers["ana"].address
        finally:
            for wire in peers.values():
                await wire.transport.close()

    return lambda announced_by, host, who="ana": asyncio.run(scenario(announced_by, host, who))


def test_a_peer_that_does_not_know_its_address_outside_is_reached_at_it(reached):
    found, own = reached("tcp://192.0.2.1:{}".format, "127.0.0.1")
    assert found == own


def test_a_peer_that_is_seen_where_it_does_not_listen_is_reached_at_its_own(reached):
    found, own = reached("tcp://127.0.0.1:{}".format, "192.0.2.1")
    assert found == own


def test_where_another_peer_answers_a_peer_is_not_reached(reached):
    assert reached("tcp://192.0.2.1:{}".format, "127.0.0.1", who="eve")[0] is None


def test_what_answers_and_is_not_libp2p_is_no_peer_of_it():
    async def scenario():
        async def answer(reader, writer):
            with contextlib.closing(writer):
                writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                await writer.drain()

        async with await asyncio.start_server(answer, "127.0.0.1") as server:
            with pytest.raises(ConnectionRefusedError, match="not libp2p"):
                await dial_back.check_speaks_libp2p(*server.sockets[0].getsockname())

    asyncio.run(scenario())


@pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")
def test_a_connection_that_a_libp2p_peer_keeps_open_does_not_show_that_it_is_reached():
    """It answers on that connection, whatever address it has announced."""
    pytest.importorskip("hivemind", reason="the extra `swarm` is not installed")
    from dipaco.swarm.network.libp2p import Libp2p

    async def scenario():
        back, ana = await wire_of(issue("back")), await wire_of(issue("ana"))
        for wire in (back, ana):
            StateHolder(wire, None)
            await wire.transport.close()
        back.transport = await Libp2p.start(back.serve)
        ana.transport = await Libp2p.start(ana.serve, bootstrap=(back.address,))
        try:
            identity = ana.address.partition("/p2p/")[2]
            request = PeerRequest(ana.name, None, b"")
            there = await reached_address(back, ana.address, request)
            closed = await reached_address(back, f"/ip4/127.0.0.1/tcp/9/p2p/{identity}", request)
            return there, closed, ana.address
        finally:
            for wire in (ana, back):
                await wire.transport.close()

    there, closed, own = asyncio.run(scenario())
    assert there == own
    assert closed is None


def test_a_machines_own_address_is_that_of_the_network_by_which_it_reaches_another():
    assert own_host("127.0.0.1") == "127.0.0.1"
    assert own_host("no.such.host.invalid") == "127.0.0.1"
