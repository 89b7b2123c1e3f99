"""Every terminal hears that the run is over, also one that waits, or asks a moment later."""

import asyncio
import threading

import pytest

from dipaco.config import MODULAR
from dipaco.swarm.network.messages import RUN_FAILED, RUN_OVER
from dipaco.swarm.roles.peer import Peer
from tests.support.backbone_rig import Lent, backbone_of, issued, phase_of
from tests.support.waiting import until

STEPS = 2


@pytest.fixture
def backbone_and_credential(run, quick_backbones):
    credential = issued(run, {"back": "backbone", "ana": "volunteer"})
    return backbone_of(run, 0, "back", credential["back"], listen="127.0.0.1:0"), credential["ana"]


@pytest.mark.parametrize("end", [RUN_OVER, RUN_FAILED])
def test_who_waits_at_a_backbone_that_does_not_lead_hears_it(run, backbone_and_credential, end):
    backbone, ana = backbone_and_credential
    lent = Lent(backbone.address, ana, path=0)
    until(lambda: run.ledger.swarms.backbones(MODULAR, 0, is_staffed=True))
    backbone.close(end)
    assert lent.ended()[-1] == end


@pytest.mark.parametrize("end", [RUN_OVER, RUN_FAILED])
def test_who_does_not_poll_as_it_ends_hears_it_with_the_next_poll(
    backbone_and_credential, monkeypatch, end
):
    backbone, ana = backbone_and_credential
    pauses, taken = threading.Event(), Peer._wait_until_taken
    paused = threading.Event()

    async def pausing(peer):
        await taken(peer)
        if pauses.is_set():
            paused.set()
            await asyncio.sleep(2.5)

    monkeypatch.setattr(Peer, "_wait_until_taken", pausing)
    lent = Lent(backbone.address, ana, path=0)
    phase_of(backbone, STEPS)
    pauses.set()
    backbone._loop.call_soon_threadsafe(backbone._leader._published.publish)
    assert paused.wait(30)
    backbone.close(end)
    assert end in lent.ended()
