"""A newcomer's terminal says that the state did not come, and that it is asked for again."""

import asyncio
from types import SimpleNamespace

from dipaco.swarm.network.limits import LinkMeter
from dipaco.swarm.network.messages import Ack, StateManifest, digest
from dipaco.swarm.training.state_download import StateDownload

NUM_CHUNKS = 6


class Donor:
    """A wire to a donor that gives so many chunks of each state, and no more."""

    def __init__(self, gives, meter=None):
        self.gives, self.meter = gives, meter or LinkMeter(None)
        self.left, self.chunks = 0, []

    def offers(self, step):
        """The state of a step: all of its chunks are others than those of the steps before."""
        self.left = self.gives
        self.chunks = [bytes([number, step]) * 5 for number in range(NUM_CHUNKS)]
        return StateManifest(
            origin="test",
            step=step,
            lineage=f"root {step}",
            chunk_bytes=10,
            digests=tuple(map(digest, self.chunks)),
            donors=("back",),
            losses=(),
        )

    async def ask(self, address, method, body, reply, **more):
        self.left -= 1
        if self.left < 0:
            raise TimeoutError
        return Ack(), self.chunks[body.number]


def fetched(donor, *steps):
    """What is said where the states of these steps are fetched one after the other; and the
    download.
    """
    said = []
    holder = SimpleNamespace(compute=object(), state=None)
    download = StateDownload(donor, holder, said.append)
    for step in steps:
        assert not asyncio.run(download.fetch(donor.offers(step)))
    return said, download


def test_a_state_that_does_not_come_whole_is_said():
    said, _ = fetched(Donor(1), 4)
    assert said == ["5 of 6 chunks of the state did not come: they are asked for again"]


def test_chunks_of_a_state_that_is_not_offered_any_more_are_not_kept():
    donor = Donor(4)
    _, download = fetched(donor, *range(8))
    assert set(download._chunks) <= set(map(digest, donor.chunks))
    _, download = fetched(Donor(2), 7, 7)
    assert len(download._chunks) == 4, "those of the same state are"


def test_where_states_change_sooner_than_they_come_the_link_is_said_to_be_too_slow():
    meter = LinkMeter(None)
    meter.received(1_000_000, 1e6)  # a byte in a second
    said, _ = fetched(Donor(1, meter), 1, 1, 1, 1)
    assert not any("too slow" in one for one in said), "one that is offered longer comes at last"
    said, _ = fetched(Donor(4, meter), 1, 2, 3, 4, 5)
    (slow,) = [one for one in said if "too slow" in one]
    assert "60 s" in slow
    said, _ = fetched(Donor(4), 1, 2, 3)
    assert any("too slow" in one for one in said), "also where it is not measured"
