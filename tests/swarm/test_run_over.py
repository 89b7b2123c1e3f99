"""Every terminal hears that the run is over, also one that waits, or asks a moment later."""

import asyncio
import threading

import pytest

from dipaco.config import MODULAR
from dipaco.swarm.roles import backbone as backbones
from dipaco.swarm.roles.peer import Peer
from dipaco.swarm.roles.session import SessionConfig, run_session
from tests.support.backbone_rig import backbone_of, issued, phase_of, until

STEPS = 2


class Lent:
    """A lent machine, in a thread: what its terminal says, and what ended it."""

    def __init__(self, address, credential):
        self.said, self.error = [], None
        self._config = SessionConfig(address, True, True, None, path=0)
        self._thread = threading.Thread(target=self._lend, args=(credential,), daemon=True)
        self._thread.start()

    def _lend(self, credential):
        try:
            asyncio.run(run_session(self._config, credential, asyncio.Event(), self.said.append))
        except Exception as error:
            self.error = error

    def ended(self):
        self._thread.join(30)
        assert not self._thread.is_alive(), self.said
        assert self.error is None
        return self.said


@pytest.fixture
def backbone_and_credential(run, monkeypatch):
    monkeypatch.setattr(backbones, "STATUS_SECONDS", 0.05)
    credential = issued(run, {"back": "backbone", "ana": "volunteer"})
    return backbone_of(run, 0, "back", credential["back"]), credential["ana"]


def test_who_waits_at_a_backbone_that_does_not_lead_hears_it(run, backbone_and_credential):
    backbone, ana = backbone_and_credential
    lent = Lent(backbone.address, ana)
    until(lambda: run.ledger.swarms.backbones(MODULAR, 0, is_staffed=True))
    backbone.close(is_finished=True)
    assert lent.ended()[-1] == "the run is over"


def test_who_does_not_poll_as_it_ends_hears_it_with_the_next_poll(
    backbone_and_credential, monkeypatch
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
    lent = Lent(backbone.address, ana)
    phase_of(backbone, STEPS)
    pauses.set()
    backbone._loop.call_soon_threadsafe(backbone._leader._published.publish)
    assert paused.wait(30)
    backbone.close(is_finished=True)
    assert "the run is over" in lent.ended()
