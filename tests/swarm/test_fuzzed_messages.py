"""Every request of the wire, damaged many times: each is refused with a sentence or
means something, none raises an error that a leader does not expect, and the group goes on.
"""

import asyncio
import random
import warnings

import msgspec
import pytest

from dipaco.runs.version import program_version
from dipaco.swarm.network import messages, wire
from dipaco.swarm.training import state_holder
from tests.support.fuzzing import damaged_bytes, damaged_fields, encoded
from tests.support.swarm_rig import assert_replayed, issue, wire_of

TIMES = 90  # each
ROUND = {"round_number": 1, "start": 0, "stop": 5}
BODIES = {
    "run": messages.Ack(),
    "settings": messages.SettingsRequest(),
    "join": messages.JoinRequest(version=program_version(), address=None, computes=True),
    "poll": messages.PollRequest(
        origin="test",
        step=0,
        lineage="root",
        known=-1,
        leader="",
        steps_taken=0,
        bytes_up=1,
        bytes_down=1,
        up_bytes_per_second=1e6,
        down_bytes_per_second=1e6,
    ),
    "work": messages.WorkRequest(
        step=0,
        lineage="root",
        wants_more=True,
        done=(messages.BlockResult(block=0, loss=1.0, targets=46.0),),
    ),
    "manifest": messages.Ack(),
    "held": messages.HeldStateRequest(origin="test"),
    "past_mean": messages.PastMeanRequest(step=0, before="root", start=0, stop=5),
    "leave": messages.Ack(),
    "records": messages.AddressRecords(),
    "check": messages.Ack(),
    "checked": messages.Ack(),
    "commit": messages.BringRequest(round_number=1, content=bytes(16)),
    "sketch": messages.BringRequest(round_number=1, content=bytes(512)),
    "forward": messages.ForwardRequest(round_number=1, reducer="bo/1"),
    "push": messages.SliceRequest(sender="eve/1", **ROUND),
    "slice_mean": messages.SliceRequest(**ROUND),
    "part": messages.SliceRequest(sender="eve/1", **ROUND),
    "arrived": messages.ArrivedRequest(round_number=1),
    "chunk": messages.ChunkRequest(step=0, lineage="root", number=0),
}


class Written:
    """Takes what a leader replies to a peer that has this certificate (DER)."""

    def __init__(self, certificate):
        self.content, self._certificate = b"", certificate

    def write(self, content):
        self.content += content

    async def drain(self):
        pass

    def get_extra_info(self, name):
        return self if name == "ssl_object" else None

    def getpeercert(self, *, binary_form):
        return self._certificate


async def served(group, eve, content):
    """What the leader replies to these bytes; what it raises is raised."""
    reader, writer = asyncio.StreamReader(), Written(eve.credential.der)
    reader.feed_data(content)
    handling = asyncio.ensure_future(group.wire.serve(reader, writer))
    await asyncio.wait([handling], timeout=0.01)
    if not handling.done():
        reader.feed_eof()  # it waits for a change or a round: the peer hangs up
    await asyncio.wait_for(handling, 5)
    return writer.content


async def test_every_kind_of_request_is_fuzzed(group):
    assert set(BODIES) == set(group.wire._handlers)


@pytest.mark.usefixtures("real_time")
@pytest.mark.parametrize("method", BODIES)
async def test_no_damaged_message_crashes_a_leader(group, method, monkeypatch):
    monkeypatch.setattr(state_holder, "UNSENT_ROUND_SECONDS", 0.1)
    rng, unexpected = random.Random(method), []
    asyncio.get_running_loop().set_exception_handler(
        lambda loop, context: unexpected.append(context)
    )
    eve = await wire_of(issue("eve"), listens=False)
    certificate = eve.credential.certificate
    members = group.leader.group
    step = asyncio.ensure_future(group.step())
    await asyncio.sleep(0)
    whole = BODIES[method]
    for number in range(TIMES):
        members.banned.clear(), members.refusals.clear()
        if eve.name not in members.members:
            members.add_member(eve.name, certificate, BODIES["join"])
        body, payload = msgspec.msgpack.encode(whole), b""
        if number % 3:
            is_typed = number % 3 == 1
            body = encoded(damaged_fields(whole, rng)) if is_typed else damaged_bytes(body, rng)
            payload = rng.choice([b"", bytes(20), rng.randbytes(rng.randrange(200))])
        request = wire.Request(method, body, eve.name, group.wire.name, len(payload))
        header = msgspec.msgpack.encode(request)
        if not number % 3:
            header = damaged_bytes(header, rng)
        with warnings.catch_warnings(action="error"):
            await served(group, eve, len(header).to_bytes(4, "big") + header + payload)
    assert not unexpected
    members.remove(eve.name, "it has left")
    await group.join("ana")
    await step
    await group.step()
    assert_replayed(group)
    await eve.transport.close()
