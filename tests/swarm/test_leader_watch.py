"""When a backbone that follows takes the one that leads for dead: not when it is only cut off."""

import asyncio
from types import SimpleNamespace

import pytest

pytest.importorskip("cryptography", reason="the extra `volunteer` is not installed")

from dipaco.runs.opening import create_or_open
from dipaco.swarm.network.transport import Tcp
from dipaco.swarm.roles.backbone_ledger import BackboneLedger, BackbonePlace
from dipaco.swarm.roles.leader_watch import REFUSALS, LeaderWatch
from tests.support.backbone_rig import issued
from tests.support.swarm_rig import SETTINGS
from tests.support.tiny_run import TOY


class Ledger:
    """Of a path that `back` led last."""

    def __init__(self, address):
        self.address, self.ended = address, []

    def other_that_led(self):
        return "back", self.address

    def end_claims_of(self, worker):
        self.ended.append(worker)
        return 1


class Unreachable:
    """A machine that does not answer, or one at which another process does."""

    def __init__(self, error):
        self.error = error

    async def open(self, address):
        raise self.error


async def looks(transport, ledger, *states):
    said = []
    watch = LeaderWatch(SimpleNamespace(transport=transport), ledger, said.append)
    for is_out_of_touch in states:
        await watch.look(is_out_of_touch=is_out_of_touch)
    return said


def test_a_leader_whose_port_refuses_twice_has_ended_and_its_claims_are_given_back():
    async def scenario():
        server = await Tcp.start(lambda reader, writer: asyncio.sleep(9))
        own, ledger = Tcp(), Ledger(server.address)
        assert not await looks(own, ledger, *[True] * (REFUSALS + 1)), "it listens"
        await server.close()
        assert not await looks(own, ledger, *[True] * (REFUSALS - 1))
        assert not await looks(own, ledger, True, False, True, False, True), "a reply came between"
        (said,) = await looks(own, ledger, *[True] * REFUSALS)
        assert "the process of back has ended" in said
        assert ledger.ended == ["back"]

    asyncio.run(scenario())


@pytest.mark.parametrize("error", [TimeoutError(), OSError("no route to host")])
def test_a_leader_that_is_cut_off_may_lead_on_and_has_its_lease(error):
    ledger = Ledger("tcp://198.51.100.1:1")
    assert not asyncio.run(looks(Unreachable(error), ledger, *[True] * 5))
    assert not ledger.ended


def test_only_another_that_led_last_and_is_still_there_is_looked_at(tmp_path):
    run, _ = create_or_open(tmp_path / "run", TOY)
    place = BackbonePlace("modular", 0, "second")
    ledger = BackboneLedger(run.ledger, place, SETTINGS, "tcp://second")
    issued(run, {"back": "backbone"})
    for name in ("back", "second"):
        run.ledger.members.join(name, host="h", pid=1, life=name, machine="m", version="0")
        run.ledger.swarms.put_backbone(name, "modular", 0, f"tcp://{name}")
    assert ledger.other_that_led() is None, "nobody has led"
    run.ledger.swarms.put_status("modular", 0, "back", {})
    assert ledger.other_that_led() == ("back", "tcp://back")
    claim = run.ledger.queue.claim("back")
    assert ledger.end_claims_of("back") == 1
    assert not run.ledger.queue.is_held(claim)
    run.ledger.swarms.put_status("modular", 0, "second", {})
    assert ledger.other_that_led() is None, "this one leads"
    run.ledger.swarms.put_status("modular", 0, "back", {})
    run.ledger.swarms.drop_backbone("back")
    assert ledger.other_that_led() is None, "it has left"
    run.ledger.close()
