"""Fetches the means of a round slice by slice: from their reducers while the round goes on, or from
the leader once the step is closed.
"""

import asyncio

from dipaco.swarm.errors import BadMessage, SwarmRefuses
from dipaco.swarm.network.leader_connection import LeaderConnection
from dipaco.swarm.network.messages import (
    Ack,
    ClosedStep,
    PastMeanRequest,
    RoundPlan,
    Slice,
    digest,
)
from dipaco.swarm.network.wire import PEER_ERRORS, Wire
from dipaco.swarm.planning.deadlines import Durations
from dipaco.swarm.roles.part_sender import PartSender
from dipaco.swarm.training.reducer import Reducer
from dipaco.swarm.training.slices import fetch_mean

PATIENCE = 3.0  # a transfer is given up after so many times its expected duration


class RoundMeans:
    """The means of one peer in one session.

    Args:
      wire, reducer, leader, sender: parts of the peer.
      reply_seconds: durations of short requests to the leader.
    """

    def __init__(
        self,
        wire: Wire,
        reducer: Reducer,
        leader: LeaderConnection,
        sender: PartSender,
        reply_seconds: Durations,
    ):
        self._wire, self._reducer, self._leader = wire, reducer, leader
        self._sender, self._reply_seconds = sender, reply_seconds
        # Round -> start of a slice -> its coded mean.
        self._fetching: dict[int, dict[int, asyncio.Task[bytes]]] = {}

    def begin(self, plan: RoundPlan) -> None:
        """Fetches the means of a round as they arrive."""
        for task in (task for means in self._fetching.values() for task in means.values()):
            task.cancel()  # its round is over, or held again
        self._fetching = {
            plan.number: {
                part.start: asyncio.ensure_future(self._fetch(plan, part)) for part in plan.slices
            }
        }

    async def _fetch(self, plan: RoundPlan, part: Slice) -> bytes:
        """The coded mean of a slice; empty if its reducer does not give it."""
        if self._sender.is_unreached(part.address):
            return b""  # the leader gives it
        try:
            return await fetch_mean(
                self._wire,
                self._reducer,
                plan,
                part,
                within_seconds=4 * plan.within_seconds,
            )
        except PEER_ERRORS:
            return b""

    async def of_step(self, closed: ClosedStep) -> list[bytes] | None:
        """The coded mean of every slice, or None if one is gone."""
        contents = await asyncio.gather(
            *(
                self.of_slice(closed, part, known)
                for part, known in zip(closed.slices, closed.digests, strict=True)
            )
        )
        known = [content for content in contents if content is not None]
        return known if len(known) == len(contents) else None

    async def of_slice(self, closed: ClosedStep, part: Slice, known: bytes) -> bytes | None:
        """A slice of the mean, from its reducer or else from the leader. None if it is gone."""
        task = self._fetching.get(closed.round_number, {}).get(part.start)
        if task is not None:
            # The leader has this slice already, so a reducer that still has not is passed over.
            # Slices arrive side by side, so each may take as long as the whole mean.
            num_bytes = 4 * sum(one.stop - one.start for one in closed.slices)
            within = self._reply_seconds.deadline_seconds(2.0) + 1.0
            within += PATIENCE * self._wire.meter.seconds("down", num_bytes)
            try:
                content = await asyncio.wait_for(task, within)
                if digest(content) == known:
                    return content
            except (TimeoutError, BadMessage):
                # If the step is tried again, the leader is asked at once.
                del self._fetching[closed.round_number][part.start]
        return await self._from_leader(closed, part, known)

    async def _from_leader(self, closed: ClosedStep, part: Slice, known: bytes) -> bytes | None:
        body = PastMeanRequest(
            step=closed.step, before=closed.before, start=part.start, stop=part.stop
        )
        for _ in range(3):
            try:
                _, content = await self._wire.ask(
                    self._leader.address, "past_mean", body, Ack, within_seconds=60.0
                )
            except SwarmRefuses:
                return None
            except PEER_ERRORS:
                await asyncio.sleep(0.1)
                continue
            if digest(content) == known:
                return content
        return None
