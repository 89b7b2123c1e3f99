"""Every reply that a leader gets, damaged some hundreds of times: none raises an error that it does
not expect, and none is taken for what it is not.
"""

import asyncio
import contextlib
import random

import msgspec
import numpy as np
import pytest

from dipaco.swarm.leading.rounds import RoundFailed
from dipaco.swarm.network import messages, wire
from dipaco.swarm.network.addresses import parse
from dipaco.swarm.training.compute import CHUNK_BYTES
from dipaco.swarm.training.slices import Reducer
from dipaco.swarm.training.state_download import fetch_held_state
from dipaco.swarm.training.sum_sketch import BUCKETS, sketch_of
from tests.support.fuzzing import damaged_bytes, damaged_fields, encoded
from tests.support.swarm_rig import Group, assert_replayed, first_state, issue, round_plan, wire_of

TIMES = 200  # each
EVE_AT = "127.0.0.1:9"


pytestmark = pytest.mark.filterwarnings("error")


class Answers:
    """A transport at whose other end is one peer, which damages its replies to one method.

    Args:
      eve: the wire of that peer.
      handlers: method -> what it would reply: its request's bytes -> (reply, payload).
      damaged: the method.
    """

    address = "127.0.0.1:1"

    def __init__(self, eve, handlers, damaged, rng):
        self.eve, self.handlers, self.damaged, self.rng = eve, handlers, damaged, rng
        self.number = 0

    async def open(self, address):
        parse(address)
        reader = asyncio.StreamReader()
        certificate = self.eve.credential.der
        replied = lambda request: reader.feed_data(self.replied(request)) or reader  # noqa: E731
        return reader, Asked(replied, certificate)

    def replied(self, content):
        """The reply to the bytes of a request; with a hang-up where it is damaged beyond that."""
        size = 4 + int.from_bytes(content[:4], "big")
        header = msgspec.msgpack.decode(content[4:size], type=wire.Request)
        whole, payload = self.handlers[header.method](header.body)
        body, damage = msgspec.msgpack.encode(whole), None
        if header.method == self.damaged:
            damage, self.number = self.number % 3, self.number + 1
            if damage == 0:
                body = encoded(damaged_fields(whole, self.rng))
            elif damage == 1:
                body = damaged_bytes(body, self.rng)
            if self.rng.random() < 0.5:
                payload = self.rng.choice([b"", payload[:-1], self.rng.randbytes(len(payload))])
        is_refused = damage is not None and self.rng.random() < 0.05
        reply = wire.Reply(body, "\x1b[2J" if is_refused else "", len(payload))
        answer = msgspec.msgpack.encode(reply)
        if damage == 2:
            answer = damaged_bytes(answer, self.rng)
        return len(answer).to_bytes(4, "big") + answer + payload


class Asked:
    """Takes a request, and has it replied when it is whole."""

    def __init__(self, reply, certificate):
        self._reply, self._content, self._certificate = reply, b"", certificate

    def write(self, content):
        self._content += content

    async def drain(self):
        if self._content:
            self._reply(self._content).feed_eof()
            self._content = b""

    def close(self):
        pass

    def get_extra_info(self, name):
        return self if name == "ssl_object" else None

    def getpeercert(self, *, binary_form):
        return self._certificate


@pytest.fixture
def rng(request):
    return random.Random(request.node.name)


def settled(group, eve):
    """Eve is a member, as if nothing had happened."""
    members = group.leader.group
    members.banned.clear(), members.refusals.clear()
    group.leader._rounds.past.last_aside.clear()
    if eve.name not in members.members:
        body = messages.JoinRequest(version="", address=EVE_AT, computes=True)
        members.add_member(eve.name, eve.credential.certificate, body)


class WithEve:
    """A group whose leader has no peer but Eve, and reaches her wherever it dials."""

    def __init__(self, damaged, rng, role="volunteer"):
        self._damaged, self._rng, self._role = damaged, rng, role

    async def __aenter__(self):
        self.group = await Group().__aenter__()
        self.eve = await wire_of(issue("eve", self._role), listens=False)
        self.handlers = {}
        self.usual = self.group.wire.transport
        self.group.wire.transport = Answers(self.eve, self.handlers, self._damaged, self._rng)
        return self

    async def __aexit__(self, *_):
        self.group.wire.transport = self.usual
        if _[0] is None:  # the leader goes on
            await self.group.join("ana")
            await self.group.step()
            assert_replayed(self.group)
        await self.eve.transport.close()
        await self.group.__aexit__()


@pytest.mark.parametrize("damaged", ["slice_mean", "part", "arrived"])
async def test_damaged_replies_of_a_reducer_do_not_stop_a_round(damaged, rng):
    async with WithEve(damaged, rng) as it:
        group, eve, rounds = it.group, it.eve, it.group.leader._rounds
        count = group.compute.num_values
        vector = np.random.default_rng(0).normal(size=count).astype("<f4")
        if damaged == "part":
            vector[0] = np.nan  # the leader looks at the parts of such a mean
        sender = messages.Sender(name=eve.name, blocks=(0,), targets=46.0)
        of = {"within_seconds": 0.2, "commitments": (messages.digest(vector.tobytes()),)}
        plan = round_plan(1, [sender], [(0, count, eve.name, EVE_AT)], step=0, **of)
        reducer = Reducer(eve.name)
        reducer.begin(plan)
        total = await reducer.slice_sum(1, 0, count)
        reducer.push(total, eve.name, vector.tobytes())
        it.handlers |= {
            "slice_mean": lambda body: (messages.Ack(), total.mean),
            "part": lambda body: (messages.Ack(), vector.tobytes()),
            "arrived": lambda body: (messages.ArrivedReply(senders=(eve.name,)), b""),
        }

        async def shows_sketches(plan):
            rounds.sums.sketches[eve.name] = np.reshape(sketch_of(vector, b"", 0), (1, BUCKETS))
            return plan

        rounds._all_sketches = shows_sketches
        held, named = 0, []
        for _ in range(TIMES):
            settled(group, eve)
            if damaged == "arrived":
                waiting = {eve.name: asyncio.get_running_loop().create_future()}
                with contextlib.suppress(RoundFailed):
                    missing = await rounds._missing(plan, waiting)
                    assert missing <= {(eve.name, eve.name)}
                continue
            rounds.publish(plan)
            try:
                assert await rounds.hold(plan) == [total.mean]
                held += 1
            except RoundFailed as error:
                named.append(bool(error.failed or error.not_finite))
        assert all(named)
        assert damaged != "slice_mean" or held < TIMES / 2
        del rounds._all_sketches
        group.leader.group.remove(eve.name, "it has left")


async def test_damaged_states_of_another_backbone_are_not_taken(rng):
    async with WithEve("held", rng, role="backbone") as it:
        group = it.group
        group.holder.pin(0)
        packed = await group.holder.pinned_bytes(0, "root")
        manifest = messages.StateManifest(
            origin="test",
            step=0,
            lineage="root",
            chunk_bytes=CHUNK_BYTES,
            digests=(*packed.digests, messages.digest(b"x")),
            donors=(EVE_AT,),
            losses=(),
        )
        elsewhere = msgspec.structs.replace(manifest, donors=("root", "a..b:1"))
        it.handlers |= {
            "held": lambda body: (rng.choice([manifest, elsewhere]), b""),
            "chunk": lambda body: (messages.Ack(), rng.choice([b"", b"x"])),
        }
        for _ in range(TIMES):
            group.holder.set_state(first_state(), group.holder.position, [])
            await fetch_held_state(group.wire, group.holder, [EVE_AT], "test", (0, 9), print)
            assert group.holder.origin == "test"
            assert group.holder.step == 0


async def test_a_newcomer_that_answers_damaged_is_taken_for_one_that_is_not_reached(rng):
    async with WithEve("records", rng) as it:
        it.handlers["records"] = lambda body: (messages.AddressRecords(), b"")
        certificate = it.eve.credential.certificate
        request = wire.PeerRequest(it.eve.name, certificate, b"", source="127.0.0.1")
        found = [await it.group.wire.reached_at(EVE_AT, request) for _ in range(TIMES)]
        assert set(found) == {None, EVE_AT}
