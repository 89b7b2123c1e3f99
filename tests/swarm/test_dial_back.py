"""Where a peer is reached: at the address that its backbone sees, or at none."""

import asyncio

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


def test_a_machines_own_address_is_that_of_the_network_by_which_it_reaches_another():
    assert own_host("127.0.0.1") == "127.0.0.1"
    assert own_host("no.such.host.invalid") == "127.0.0.1"
