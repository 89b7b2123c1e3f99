"""What a peer says, and how long it tries, while no backbone leads."""

import asyncio
import socket
from types import SimpleNamespace

import pytest

from dipaco.swarm.errors import MessageRefused, SwarmUnreachable, TlsRefused
from dipaco.swarm.network import leader_connection
from dipaco.swarm.network.leader_connection import LeaderConnection
from dipaco.swarm.network.messages import GroupInfo, SettingsRequest
from tests.support.swarm_clock import run


class StubWire:
    """A wire to backbones, each of which replies or raises something."""

    address = None
    book = SimpleNamespace(records=(), addresses=lambda role: ())

    def __init__(self, replies):
        self._replies = replies

    async def ask(self, address, method, body, reply, **more):
        if isinstance(self._replies[address], Exception):
            raise self._replies[address]
        return self._replies[address], b""


def found(replies, known, until=lambda said: False):
    """What `find` says, until it gives up or `until` holds."""
    said = []

    async def scenario():
        connection = LeaderConnection(StubWire(replies), known, said.append)
        finding = asyncio.ensure_future(connection.find("settings", SettingsRequest(computes=True)))
        while not finding.done() and not until(said):
            await asyncio.wait([finding], timeout=0.01)
        if not finding.done():
            finding.cancel()
            return
        await finding

    run(scenario)
    return said


def test_a_name_that_no_machine_has_is_said_and_given_up_in_the_end(monkeypatch):
    address, error = "nowhere.invalid:4710", socket.gaierror(-2, "?")
    monkeypatch.setattr(leader_connection, "QUIET_SECONDS", 0.1)
    (sentence,) = found({address: error}, (address,), until=lambda said: said)
    assert "finds no address for nowhere.invalid" in sentence
    assert sentence.endswith("trying for 10 min")
    monkeypatch.setattr(leader_connection, "GIVE_UP_SECONDS", 0.05)
    with pytest.raises(SwarmUnreachable, match=r"nowhere\.invalid"):
        found({address: error}, (address,))


@pytest.mark.parametrize(
    "error",
    [
        TlsRefused(address="a:1", problem="it is not of the run"),
        MessageRefused(sender="eve", reason="it is no backbone"),
    ],
)
def test_an_address_that_is_no_backbones_of_the_run_is_not_tried_again(error):
    with pytest.raises(type(error)):
        found({"a:1": error}, ("a:1",))


def test_of_two_backbones_only_the_one_that_answers_is_said_to(monkeypatch):
    monkeypatch.setattr(leader_connection, "QUIET_SECONDS", 1.0)
    waits = GroupInfo(leader="", backbones=("dead:1", "live:1"))
    replies = {"dead:1": ConnectionRefusedError("refused"), "live:1": waits}
    (sentence,) = found(replies, tuple(replies), until=lambda said: said)
    assert sentence == "live:1 answers; waiting until the path is given to volunteers"
