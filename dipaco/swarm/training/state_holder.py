"""What every peer with state does, whoever leads: holds it, steps it, gives it to newcomers, and
adds up its slice of each round.
"""

import asyncio

import jax
import numpy as np

from dipaco.inner.state import PathState
from dipaco.swarm.errors import BadMessage
from dipaco.swarm.network.codecs import codec_of
from dipaco.swarm.network.messages import (
    Ack,
    ArrivedReply,
    ArrivedRequest,
    ChunkRequest,
    ClosedStep,
    MeanReply,
    MeanRequest,
    PushRequest,
)
from dipaco.swarm.network.wire import PeerReply, PeerRequest, Wire
from dipaco.swarm.training.compute import Compute
from dipaco.swarm.training.reducer import Reducer
from dipaco.swarm.training.state_bytes import StateBytes


class StateHolder:
    """The state of one peer, and its answers to others.

    Args:
      wire: is given handlers.
      compute: its programs; None for an auxiliary, which holds no state.
    """

    def __init__(self, wire: Wire, compute: Compute | None = None):
        self.compute = compute
        self.reducer = Reducer(wire.name)
        self.state: PathState | None = None
        self.origin, self.step, self.lineage = "", -1, ""
        self.is_exact = True  # not a rounding away from the group's
        self.losses: list[float] = []  # of the steps of this phase
        self.steps_taken = 0  # with the group, since the state was fetched or given
        self._kept: tuple[int, str, PathState] | None = None
        self._kept_bytes: dict[str, StateBytes] = {}  # by codec
        self._packing = asyncio.Lock()
        wire.register("push", PushRequest, self._push)
        wire.register("fetch", MeanRequest, self._fetch)
        wire.register("arrived", ArrivedRequest, self._arrived)
        wire.register("chunk", ChunkRequest, self._chunk)

    @property
    def position(self) -> tuple[str, int, str]:
        """Where this state is: equal for two peers if and only if their states are, where these
        are exact.
        """
        return self.origin, self.step, self.lineage

    def begin(
        self,
        state: PathState,
        origin: str,
        step: int,
        lineage: str,
        losses: list[float],
        *,
        is_exact: bool = True,
    ) -> None:
        """A state that was fetched, or given by the run."""
        self.state = jax.device_put(state)
        self.origin, self.step, self.lineage = origin, step, lineage
        self.losses, self.steps_taken, self.is_exact = losses, 0, is_exact

    async def advance(self, mean: np.ndarray, closed: ClosedStep) -> None:
        """Takes a step that the group has taken."""
        assert self.compute is not None
        assert self.state is not None
        assert (closed.step, closed.before) == (self.step, self.lineage)
        self.state = await asyncio.to_thread(
            self.compute.step, self.state, mean, closed.learning_rate
        )
        self.step, self.lineage = closed.step + 1, closed.after
        self.losses.append(closed.loss)
        self.steps_taken += 1

    def keep(self, step: int) -> None:
        """Keeps the state of this step for newcomers, if it is the one that is held now."""
        if step == self.step and self.state is not None:
            here = self._kept is not None and self._kept[:2] == (step, self.lineage)
            if not here:
                self._kept, self._kept_bytes = (step, self.lineage, self.state), {}

    async def pinned_bytes(self, step: int, lineage: str, codec: str) -> StateBytes:
        """Raises `BadMessage` where that state is not kept."""
        async with self._packing:
            if self._kept is None or self._kept[:2] != (step, lineage):
                raise BadMessage(problem=f"the state of step {step} is not kept here")
            kept, state = self._kept_bytes, self._kept[2]
            if codec not in kept:
                kept[codec] = await asyncio.to_thread(
                    lambda: StateBytes(jax.device_get(state), codec)
                )
            return kept[codec]

    async def _push(self, body: PushRequest, question: PeerRequest) -> PeerReply:
        slot = await self.reducer.slot(body.round_number, body.start, body.stop)
        self.reducer.push(slot, question.sender, question.payload)
        return Ack(), b""

    async def _fetch(self, body: MeanRequest, _: PeerRequest) -> PeerReply:
        slot = await self.reducer.slot(body.round_number, body.start, body.stop)
        content, digest, refused = await self.reducer.outcome(slot)
        return MeanReply(digest=digest, refused=refused), content

    async def _arrived(self, body: ArrivedRequest, _: PeerRequest) -> PeerReply:
        return ArrivedReply(senders=self.reducer.arrived(body.round_number)), b""

    async def _chunk(self, body: ChunkRequest, _: PeerRequest) -> PeerReply:
        kept = await self.pinned_bytes(body.step, body.lineage, body.codec)
        return Ack(), kept.chunk(body.number)


def decoded(content: bytes, codec: str, num_values: int) -> np.ndarray:
    """A slice of the mean, as everybody decodes it alike."""
    return codec_of(codec).decode(content, num_values)
