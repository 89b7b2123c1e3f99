"""When a backbone that follows takes the one that leads for dead: not when it is only cut off."""

import asyncio
from types import SimpleNamespace

import pytest

from dipaco.config import MODULAR
from dipaco.swarm.roles.backbone_ledger import BackboneLedger, BackbonePlace
from dipaco.swarm.roles.backbone_watch import REFUSALS, LeaderWatch
from tests.support.members import join, process_of
from tests.support.swarm_rig import SETTINGS, issue, wire_of
from tests.support.tiny_run import TOY


class Ledger:
    """Of a path that `back` holds."""

    def __init__(self, address):
        self.address, self.ended = address, []

    def holder_at(self, address):
        return ("back", "its process") if address == self.address else None

    def end_claims_of(self, holder):
        self.ended.append(holder)
        return 1


class Unreachable:
    """A machine that does not answer, or a transport of another kind."""

    def __init__(self, error):
        self.error = error

    async def open(self, address):
        raise self.error


async def looks(transport, ledger, *lost):
    said = []
    watch = LeaderWatch(SimpleNamespace(transport=transport), ledger, said.append)
    for address in lost:
        await watch.look(address)
    return said


async def test_a_leader_whose_port_refuses_twice_has_ended_and_its_claims_are_given_back():
    leader, own = await wire_of(issue("back", "backbone")), await wire_of(issue("second"))
    at, own = leader.address, own.transport
    ledger = Ledger(at)
    assert not await looks(own, ledger, *[at] * (REFUSALS + 1)), "it listens"
    await leader.transport.close()
    assert not await looks(own, ledger, *[at] * (REFUSALS - 1))
    assert not await looks(own, ledger, at, None, at, None, at), "a reply came between"
    assert not await looks(own, ledger, *["127.0.0.1:1"] * 5), "who is there holds nothing"
    (said,) = await looks(own, ledger, *[at] * REFUSALS)
    assert "the process of back has ended" in said
    assert ledger.ended == [("back", "its process")]
    await own.close()


@pytest.mark.parametrize(
    ("address", "error"),
    [
        ("198.51.100.1:1", TimeoutError()),
        ("198.51.100.1:2", OSError("no route to host")),
    ],
)
def test_a_leader_that_is_cut_off_may_lead_on_and_has_its_lease(address, error):
    ledger = Ledger(address)
    assert not asyncio.run(looks(Unreachable(error), ledger, *[address] * 5))
    assert not ledger.ended


@pytest.fixture
def ledger(run):
    for name in ("back", "second"):
        join(run.ledger, name)
        run.ledger.swarms.put_backbone(name, MODULAR, 0, f"{name}")
    return BackboneLedger(run.ledger, BackbonePlace(MODULAR, 0, "second"), SETTINGS, "second")


def test_only_the_process_that_holds_the_claim_loses_it(run, ledger):
    assert ledger.holder_at("back") is None, "it holds none"
    claim = run.ledger.queue.claim("back")
    assert ledger.holder_at("third") is None
    holder = ledger.holder_at("back")
    assert holder == ("back", process_of("back"))
    assert ledger.end_claims_of(("back", "another process of that name")) == 0
    assert run.ledger.queue.is_held(claim)
    assert ledger.end_claims_of(holder) == 1
    assert not run.ledger.queue.is_held(claim)
    own = run.ledger.queue.claim("second")
    assert own is not None
    assert ledger.holder_at("second") is None, "this one"
    run.ledger.swarms.drop_backbone("back")
    assert ledger.holder_at("back") is None, "it has left"


def test_what_the_run_expects_of_a_path_has_those_that_have_just_come(run, ledger):
    peer = {"computes": True, "does": "computes", "seconds": 9.0, "samples": 0}
    timed = peer | {"samples_per_second": 4.0}
    new = peer | {"samples_per_second": 0.0}
    only_adds = peer | {"samples_per_second": 0.0, "computes": False}
    peers = {"ana/1": timed, "bo/1": new, "aux/1": only_adds}
    run.ledger.swarms.put_status(MODULAR, 0, "back", {"peers": peers})
    (path,) = ledger.overview(100, TOY.inner).paths
    assert (path.samples_per_second, path.expected_samples_per_second) == (4.0, 8.0)


async def test_a_peer_knows_which_leader_it_has_lost(group):
    ana, address = await group.join("ana"), group.wire.address
    await group.step()
    assert ana.lost is None
    await group.wire.transport.close()
    async with asyncio.timeout(20):
        while ana.lost != address:
            await asyncio.sleep(0.05)
