"""Which way a peer's parts of a round take."""

import asyncio
import time
from types import SimpleNamespace

import pytest

from dipaco.swarm.network.messages import Ack
from dipaco.swarm.roles.round_parts import PartSender
from dipaco.swarm.training.slices import Reducer
from tests.support.swarm_rig import round_plan

LEADER, LEADER_AT, BO, BO_AT = "back/1", "back", "bo/1", "bo"
OWN = "ana/1"


class Network:
    """A wire to the leader and to another reducer. The leader passes parts on to that alone."""

    name = OWN

    def __init__(self):
        self.broken = set()  # addresses that do not answer
        self.tries = 0  # direct ones that were not answered
        self.sent = []  # (way, what) of each request that was answered

    async def ask(self, address, method, body, reply, **more):
        if address in self.broken:
            self.tries += 1
            raise TimeoutError
        assert getattr(body, "reducer", BO) == BO, "the leader passes nothing on to itself"
        self.sent.append((address, method))
        return Ack(), b""


@pytest.fixture
def network():
    return Network()


@pytest.fixture
def send(network):
    """`send(reducer, at)`: sends a part in a round of its own; the requests that were answered."""
    leader = SimpleNamespace(address=LEADER_AT)
    sender = PartSender(network, Reducer(OWN), leader, lambda sentence: None)

    def one(reducer, at):
        plan = round_plan(1, [OWN], [(0, 2, reducer, at)], within_seconds=1.0)
        (part,) = plan.slices
        network.sent.clear()
        asyncio.run(sender._send(plan, part, bytes(8), LEADER))
        return list(network.sent)

    return one


def test_a_reducer_that_is_not_reached_gets_its_parts_through_the_leader_from_then_on(
    network, send
):
    network.broken.add(BO_AT)
    assert send(BO, BO_AT) == [(LEADER_AT, "forward")]
    network.broken.clear()
    assert send(BO, BO_AT) == [(LEADER_AT, "forward")]


def test_the_leader_that_did_not_answer_once_is_sent_the_next_part_directly(network, send):
    """It passes nothing on to itself: else the peer would be out for all of `UNREACHED_SECONDS`."""
    network.broken.add(LEADER_AT)
    assert send(LEADER, LEADER_AT) == []
    network.broken.clear()
    assert send(LEADER, LEADER_AT) == [(LEADER_AT, "push")]
    assert send(BO, BO_AT) == [(BO_AT, "push")]


def test_a_reducer_that_is_never_reached_is_tried_less_and_less_often_and_once_reached_as_at_first(
    network, send, monkeypatch
):
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    network.broken.add(BO_AT)
    tried = []
    waits = [15, 30, 60, 120, 240, 480, 600, 600]
    for wait in waits:
        network.tries = 0
        send(BO, BO_AT)
        tried.append(network.tries)
        now += wait - 0.5
        network.tries = 0
        send(BO, BO_AT)
        assert network.tries == 0, f"within {wait} s"
        now += 0.6
    assert all(tried)
    network.broken.clear()
    assert send(BO, BO_AT) == [(BO_AT, "push")]
    network.broken.add(BO_AT)
    send(BO, BO_AT)
    network.broken.clear()
    now += 15.1
    assert send(BO, BO_AT) == [(BO_AT, "push")]
