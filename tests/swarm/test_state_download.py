"""A newcomer's terminal says that the state did not come, and that it is asked for again."""

import asyncio
from types import SimpleNamespace

import pytest

pytest.importorskip("cryptography", reason="the extra `volunteer` is not installed")

from dipaco.swarm.network.messages import Ack, StateManifest, digest
from dipaco.swarm.training.state_download import StateDownload

CHUNKS = [bytes([number]) * 10 for number in range(6)]


class OneChunk:
    """A wire to a donor that gives one chunk, and no more."""

    asked = 0

    async def ask(self, address, method, body, reply, **more):
        self.asked += 1
        if self.asked > 1:
            raise TimeoutError
        return Ack(), CHUNKS[body.number]


def test_a_state_that_does_not_come_whole_is_said():
    said = []
    manifest = StateManifest(
        origin="test",
        step=4,
        lineage="root",
        chunk_bytes=10,
        digests=tuple(map(digest, CHUNKS)),
        donors=("tcp://back",),
        losses=(),
    )
    holder = SimpleNamespace(compute=object(), state=None)
    download = StateDownload(OneChunk(), holder, "none", said.append)
    assert not asyncio.run(download.fetch(manifest))
    assert said == ["5 of 6 chunks of the state did not come: they are asked for again"]
