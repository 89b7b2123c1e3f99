"""Fetches a state in chunks from several donors, and goes on when a donor leaves.

Chunks that this peer has already, from its own last state or from an attempt that was cut short,
are not fetched again. Chunks that only an older state needs are dropped.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable, Collection

import jax

from dipaco.swarm.errors import BadAddress
from dipaco.swarm.network.messages import (
    Ack,
    ChunkRequest,
    HeldStateRequest,
    StateManifest,
    StatePosition,
    digest,
)
from dipaco.swarm.network.wire import PEER_ERRORS, Wire
from dipaco.swarm.training.state_holder import StateBytes, StateHolder, state_from_bytes

CONCURRENT_CHUNKS = 4
CHUNK_SECONDS = 30.0  # limit for each chunk to begin to arrive
MISSED_STATES = 2  # so many are missed before the link is said to be too slow


class StateDownload:
    """Fills a holder with the group's state."""

    def __init__(self, wire: Wire, holder: StateHolder, say: Callable[[str], None]):
        self._wire, self._holder, self._say = wire, holder, say
        self._chunks: dict[bytes, bytes] = {}  # digest -> chunk
        # the state that was fetched last, if not whole
        self._incomplete: StatePosition | None = None
        self._missed = 0  # states that were replaced before they came whole

    async def fetch(self, manifest: StateManifest) -> bool:
        """Takes the described state. False if its donors did not give all of it."""
        compute = self._holder.compute
        own = self._own_chunks()
        # Equal chunks (moments that are still zero) are fetched once.
        wanted = {d: number for number, d in enumerate(manifest.digests)}
        self._chunks = {d: chunk for d, chunk in self._chunks.items() if d in wanted}
        self._note_missed(manifest)
        missing = [(n, d) for d, n in wanted.items() if d not in self._chunks and d not in own]
        num_missing, donors = len(missing), list(manifest.donors)
        await asyncio.gather(
            *(self._fetch_chunks(manifest, missing, donors) for _ in range(CONCURRENT_CHUNKS))
        )
        chunks = [self._chunks.get(d) or own.get(d) for d in manifest.digests]
        if lost := sum(chunk is None for chunk in chunks):
            of_all = f"{lost} of {len(chunks)} chunks of the state"
            self._say(f"{of_all} did not come: they are asked for again")
            self._incomplete = manifest.position
            return False
        content = b"".join(chunk for chunk in chunks if chunk is not None)
        state = state_from_bytes(content, compute.state_like)
        self._holder.set_state(state, manifest.position, list(manifest.losses))
        self._chunks, self._incomplete, self._missed = {}, None, 0
        megabytes = num_missing * manifest.chunk_bytes / 1e6
        self._say(f"has the state of step {manifest.step} ({megabytes:.1f} MB fetched)")
        return True

    def _note_missed(self, manifest: StateManifest) -> None:
        """Says once that the link is too slow, if states are replaced before they arrive."""
        if self._incomplete is None or self._incomplete == manifest.position:
            return
        self._missed += 1
        if self._missed != MISSED_STATES:
            return
        num_bytes = len(manifest.digests) * manifest.chunk_bytes
        seconds = self._wire.meter.seconds("down", num_bytes)
        needs = f", {seconds:,.0f} s at the speed that was measured" if seconds else ""
        self._say(
            f"the link is too slow for this path: {MISSED_STATES} states were replaced by newer "
            f"ones before they came whole. A state has {num_bytes / 1e6:.1f} MB{needs}"
        )

    def _own_chunks(self) -> dict[bytes, bytes]:
        """Chunks of the state that this peer holds, by digest."""
        if self._holder.state is None:
            return {}
        own = StateBytes(jax.device_get(self._holder.state))
        return {digest(chunk): bytes(chunk) for chunk in map(own.chunk, range(own.num_chunks))}

    async def _fetch_chunks(
        self, manifest: StateManifest, missing: list[tuple[int, bytes]], donors: list[str]
    ) -> None:
        """Takes chunks from the list until it is empty, or no donor is left."""
        while missing and donors:
            number, known = missing.pop()
            donor = random.choice(donors)
            body = ChunkRequest(step=manifest.step, lineage=manifest.lineage, number=number)
            try:
                _, content = await self._wire.ask(
                    donor, "chunk", body, Ack, within_seconds=CHUNK_SECONDS
                )
            except (*PEER_ERRORS, BadAddress):
                content = b""
            if digest(content) == known:
                self._chunks[known] = content
                continue
            # The donor has left, or its state differs in the last bits: others have the rest.
            missing.append((number, known))
            if donor in donors:
                donors.remove(donor)


HELD_SECONDS = 3.0  # time for another backbone to reply with its state


async def fetch_held_state(
    wire: Wire,
    holder: StateHolder,
    others: Collection[str],
    origin: str,
    steps: tuple[int, int],
    say: Callable[[str], None],
) -> None:
    """Takes the newest state that a backbone holds. This one starts from the saved state. Another
    backbone that followed the group may be further. `steps`: the first and the last step that the
    state may precede.
    """
    found: list[StateManifest] = []
    for address in others:
        with contextlib.suppress(*PEER_ERRORS):
            manifest, _ = await wire.ask(
                address,
                "held",
                HeldStateRequest(origin=origin),
                StateManifest,
                within_seconds=HELD_SECONDS,
                from_backbone=True,
            )
            found.append(manifest)
    for manifest in sorted(found, key=lambda one: one.step, reverse=True):
        if manifest.origin == origin and steps[0] <= manifest.step <= steps[1]:
            download = StateDownload(wire, holder, say)
            with contextlib.suppress(*PEER_ERRORS):
                if await download.fetch(manifest):
                    return
