"""How long a peer waits for the mean of a step, whom it asks then, and how it leaves."""

import asyncio
import time
from types import SimpleNamespace

from dipaco.swarm.network.limits import LinkMeter
from dipaco.swarm.network.messages import Ack, ClosedStep, Slice, digest
from dipaco.swarm.roles.peer import Peer
from dipaco.swarm.training.slices import Reducer
from tests.support.swarm_clock import run

MEAN = b"m" * 4000
PART = Slice(start=0, stop=1000, reducer="bo/1", address="bo")
CLOSED = ClosedStep(
    step=3,
    before="before",
    after="after",
    round_number=7,
    slices=(PART,),
    digests=(digest(MEAN),),
    codec="none",
    learning_rate=1e-3,
    loss=1.0,
)


class Wire:
    """To a leader that has the mean."""

    name = "ana/1"

    def __init__(self, bytes_per_second):
        self.meter = LinkMeter()
        self.meter.received(100_000, 100_000 / bytes_per_second)
        self.asked = []

    async def ask(self, address, method, body, reply, **more):
        self.asked.append((method, self.fetching.cancelled()))
        return Ack(), MEAN


def mean_over(wire, reducer_seconds, tries=1):
    """The mean that a peer gets whose reducer needs so long; the leader's replies are quick."""

    async def fetch():
        peer = Peer(wire, ("back",), SimpleNamespace(reducer=Reducer("ana/1")))
        for _ in range(60):
            peer._reply_seconds.add(0.01)

        async def comes():
            await asyncio.sleep(reducer_seconds)
            return MEAN

        wire.fetching = asyncio.ensure_future(comes())
        peer._means._fetching = {7: {0: wire.fetching}}
        return [await peer._means.of_slice(CLOSED, PART, digest(MEAN)) for _ in range(tries)][-1]

    return run(fetch)


def test_what_a_slow_link_still_brings_is_not_fetched_from_the_leader_as_well():
    wire = Wire(bytes_per_second=1000.0)
    assert mean_over(wire, reducer_seconds=4.0) == MEAN
    assert wire.asked == []


def test_what_does_not_come_is_given_up_before_the_leader_is_asked():
    wire, started = Wire(bytes_per_second=1e6), time.monotonic()
    assert mean_over(wire, reducer_seconds=50.0) == MEAN
    assert wire.asked == [("past_mean", True)]
    assert time.monotonic() - started < 5.0


def test_a_step_that_is_tried_again_after_that_asks_the_leader_at_once():
    wire = Wire(bytes_per_second=1e6)
    assert mean_over(wire, reducer_seconds=50.0, tries=2) == MEAN
    assert wire.asked == [("past_mean", True)] * 2
