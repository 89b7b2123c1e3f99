"""A peer's state, its steps and its bytes for newcomers, and the peer's replies as a reducer.

A state travels in chunks that are known by digest: from several donors, and a newcomer does not
fetch those that it has. (AdamW's moments are the same before and after an outer step.)
"""

import asyncio
import functools
import math

import jax
import numpy as np

from dipaco.errors import Diverged
from dipaco.inner.state import PathState
from dipaco.swarm.errors import BadMessage, SwarmRefuses
from dipaco.swarm.network.messages import (
    NOT_YET,
    Ack,
    ArrivedReply,
    ArrivedRequest,
    ChunkRequest,
    ClosedStep,
    SliceRequest,
    StatePosition,
    digest,
)
from dipaco.swarm.network.wire import PeerReply, PeerRequest, Wire
from dipaco.swarm.training.compute import CHUNK_BYTES, Compute
from dipaco.swarm.training.slices import Reducer, SliceSum

# time for a round's plan to arrive before the asking peer must ask again
UNKNOWN_ROUND_SECONDS = 5.0
UNSENT_ROUND_SECONDS = 30.0  # the same before a payload would be sent in vain
KEPT_STEPS = 16  # newcomers may fetch a state during so many steps


class StateBytes:
    """A state as one sequence of bytes, leaves in the order that all peers share."""

    def __init__(self, state: PathState):
        self._bytes = b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(state))

    @property
    def num_chunks(self) -> int:
        return -(-len(self._bytes) // CHUNK_BYTES)

    def chunk(self, number: int) -> memoryview:
        """Raises `BadMessage` if there is no such chunk."""
        if not 0 <= number < self.num_chunks:
            raise BadMessage(problem=f"there is no chunk {number}")
        return memoryview(self._bytes)[number * CHUNK_BYTES : (number + 1) * CHUNK_BYTES]

    @functools.cached_property
    def digests(self) -> tuple[bytes, ...]:
        return tuple(digest(self.chunk(number)) for number in range(self.num_chunks))


def state_from_bytes(content: bytes, like: PathState) -> PathState:
    """The inverse. `like` gives shapes and types. Raises `BadMessage`: another size."""
    leaves, structure = jax.tree.flatten(like)
    sizes = [leaf.size * leaf.dtype.itemsize for leaf in leaves]
    if len(content) != sum(sizes):
        raise BadMessage(problem=f"the state has {len(content)} bytes, expected {sum(sizes)}")
    arrays, offset = [], 0
    for leaf, size in zip(leaves, sizes, strict=True):
        here = np.frombuffer(content, leaf.dtype, leaf.size, offset)
        arrays.append(here.reshape(leaf.shape))
        offset += size
    return jax.tree.unflatten(structure, arrays)


class StateHolder:
    """The state of one peer, and its replies to other peers. `compute`: the peer's programs."""

    def __init__(self, wire: Wire, compute: Compute):
        self.compute, self._wire = compute, wire
        self.reducer = Reducer(wire.name)
        self.state: PathState | None = None
        self.origin, self.step, self.lineage = "", -1, ""
        self.losses: list[float] = []  # losses of this phase's steps
        self.steps_taken = 0  # steps with the group since the state was set
        self._pinned: tuple[StatePosition, PathState] | None = None
        self._pinned_bytes: StateBytes | None = None
        self._packing = asyncio.Lock()
        wire.register("push", SliceRequest, self._push, admits=self._admit_push)
        wire.register("slice_mean", SliceRequest, self._slice_mean)
        wire.register("part", SliceRequest, self._part)
        wire.register("arrived", ArrivedRequest, self._arrived)
        wire.register("chunk", ChunkRequest, self._chunk)

    @property
    def position(self) -> StatePosition:
        return StatePosition(self.origin, self.step, self.lineage)

    def set_state(self, state: PathState, position: StatePosition, losses: list[float]) -> None:
        """Takes a state that was fetched, or given by the run."""
        self.state = jax.device_put(state)
        self.origin, self.step, self.lineage = position
        self.losses, self.steps_taken = losses, 0

    async def advance(self, mean: np.ndarray, closed: ClosedStep) -> None:
        """Takes a step of the group, unless its result is not finite. Raises `Diverged`."""
        assert self.state is not None
        assert (closed.step, closed.before) == (self.step, self.lineage)
        state = await asyncio.to_thread(
            self.compute.step, self.state, mean, closed.learning_rate, closed.steps
        )
        if not await asyncio.to_thread(self.compute.is_finite, state):
            raise Diverged(step=len(self.losses) + 1, loss=math.nan)
        self.state = state
        self.step, self.lineage = closed.step + closed.steps, closed.after
        kept = KEPT_STEPS * self.compute.settings.local_steps
        if self._pinned is not None and self.step > self._pinned[0].step + kept:
            self._pinned = self._pinned_bytes = None
        self.losses += [closed.loss] * closed.steps
        self.steps_taken += 1

    def pin(self, step: int) -> None:
        """Keeps the state of this step for newcomers, if it is the present state."""
        if step != self.step or self.state is None:
            return
        if self._pinned is None or self._pinned[0][1:] != self.position[1:]:
            self._pinned, self._pinned_bytes = (self.position, self.state), None

    async def pinned_bytes(self, step: int, lineage: str) -> StateBytes:
        """Raises `BadMessage` if that state is not kept."""
        async with self._packing:
            if self._pinned is None or self._pinned[0][1:] != (step, lineage):
                raise BadMessage(problem=f"the state of step {step} is not kept here")
            packed, state = self._pinned_bytes, self._pinned[1]
            if packed is None:
                packed = await asyncio.to_thread(lambda: StateBytes(jax.device_get(state)))
                if self._pinned is not None and self._pinned[1] is state:
                    self._pinned_bytes = packed
            return packed

    async def _slice_sum(
        self, body: SliceRequest, within_seconds: float = UNKNOWN_ROUND_SECONDS
    ) -> SliceSum:
        """Raises `SwarmRefuses`: that round is over, or not known here yet; `BadMessage`."""
        try:
            async with asyncio.timeout(within_seconds):
                return await self.reducer.slice_sum(body.round_number, body.start, body.stop)
        except TimeoutError:
            raise SwarmRefuses(reason=NOT_YET) from None

    async def _admit_push(self, body: SliceRequest, request: PeerRequest) -> None:
        # The payload is not read meanwhile, and would have to be sent a second time.
        total = await self._slice_sum(body, UNSENT_ROUND_SECONDS)
        is_own = request.sender == body.sender or request.certificate.role == "backbone"
        if not is_own or body.sender not in {one.name for one in total.plan.senders}:
            raise BadMessage(problem=f"{request.sender} has nothing to add in that round")

    async def _push(self, body: SliceRequest, request: PeerRequest) -> PeerReply:
        total = await self._slice_sum(body)
        self.reducer.push(total, body.sender, request.payload)
        return Ack(), b""

    async def _slice_mean(self, body: SliceRequest, _: PeerRequest) -> PeerReply:
        total = await self._slice_sum(body)
        mean = await self.reducer.mean(total)
        return Ack(), mean

    async def _part(self, body: SliceRequest, request: PeerRequest) -> PeerReply:
        if request.certificate.role != "backbone":
            raise SwarmRefuses(reason="only a backbone may ask for it")
        await self._slice_sum(body)
        return Ack(), self.reducer.part_of(body.round_number, body.sender)

    async def _arrived(self, body: ArrivedRequest, _: PeerRequest) -> PeerReply:
        return ArrivedReply(senders=self.reducer.arrived(body.round_number)), b""

    async def _chunk(self, body: ChunkRequest, _: PeerRequest) -> PeerReply:
        packed = await self.pinned_bytes(body.step, body.lineage)
        return Ack(), packed.chunk(body.number)
