"""A peer's side of a round: it commits itself to its parts, sends them to their reducers, shows
their sketches, and fetches the means.

A part whose reducer it does not reach goes through the leader. Means come slice by slice from their
reducers while the round goes on, or from the leader once the step is closed.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable

import msgspec
import numpy as np

from dipaco.swarm.errors import BadMessage, SwarmRefuses
from dipaco.swarm.network.leader_connection import LeaderConnection
from dipaco.swarm.network.messages import (
    Ack,
    BringRequest,
    ClosedStep,
    ForwardRequest,
    PastMeanRequest,
    RoundPlan,
    Slice,
    digest,
)
from dipaco.swarm.network.streams import Signal
from dipaco.swarm.network.wire import PEER_ERRORS, Wire
from dipaco.swarm.planning.timing import Durations
from dipaco.swarm.planning.track_records import LeftAlone
from dipaco.swarm.training.slices import Reducer, coded_parts, commitment_to, fetch_mean, push_part
from dipaco.swarm.training.sum_sketch import sketches_of

# Waits before an unreached reducer is tried again: the first, doubled each time, and the longest.
# A newcomer may not be up yet.
UNREACHED_SECONDS = 15.0, 600.0
ATTEMPTS = 3  # of a short request to the leader


class PartSender:
    """The sender of one peer in one session."""

    def __init__(
        self,
        wire: Wire,
        reducer: Reducer,
        leader: LeaderConnection,
        say: Callable[[str], None],
    ):
        self._wire, self._reducer, self._leader, self._say = wire, reducer, leader, say
        self._plan: RoundPlan | None = None
        self._news = Signal()
        self._sending: asyncio.Task[None] | None = None
        self._unreached = LeftAlone(*UNREACHED_SECONDS)  # addresses

    def is_unreached(self, address: str) -> bool:
        """True if parts for this address had to go through the leader lately."""
        return address in self._unreached.now(time.monotonic())

    def begin(self, plan: RoundPlan, vector: np.ndarray, leader: str) -> None:
        """Takes part in a round, beside what the caller does. `leader`: its session."""
        self.end()
        self._plan = plan
        self._sending = asyncio.ensure_future(self._take_part(plan, vector, leader))

    def update(self, plan: RoundPlan) -> None:
        """Takes the news of a round's plan."""
        if self._plan is not None and plan.number == self._plan.number:
            self._plan = plan
            self._news.set()

    def end(self) -> None:
        """The round is over, or held again."""
        if self._sending is not None:
            self._sending.cancel()
        self._plan = self._sending = None

    async def _take_part(self, plan: RoundPlan, vector: np.ndarray, leader: str) -> None:
        contents = await asyncio.to_thread(coded_parts, plan, vector)
        own, number = self._wire.name, plan.number
        if plan.commitments is None:
            digests = await asyncio.to_thread(commitment_to, contents)
            await self._tell("commit", BringRequest(round_number=number, content=digests))
            plan = await self._until(lambda new: new.commitments is not None)
        await asyncio.gather(
            *(
                self._send(plan, part, content, leader)
                for part, content in zip(plan.slices, contents, strict=True)
            )
        )
        if not plan.commitments:
            return
        told: set[str] = set()
        while not plan.seed:
            missing = {to for by, to in plan.missing if by == own} - told - {leader}
            for part, content in zip(plan.slices, contents, strict=True):
                if part.reducer in missing:
                    await self._forward(plan, part, content)
            told |= missing
            known = plan
            plan = await self._until(lambda new, known=known: new is not known)
        sketches = await asyncio.to_thread(sketches_of, plan, contents)
        await self._tell("sketch", BringRequest(round_number=number, content=sketches))

    async def _until(self, holds: Callable[[RoundPlan], bool]) -> RoundPlan:
        while self._plan is None or not holds(self._plan):
            await self._news.wait()
        return self._plan

    async def _tell(self, method: str, body: msgspec.Struct) -> None:
        for _ in range(ATTEMPTS):
            with contextlib.suppress(*PEER_ERRORS):
                await self._wire.ask(self._leader.address, method, body, Ack, within_seconds=5.0)
                return
            await asyncio.sleep(0.05)

    async def _send(self, plan: RoundPlan, part: Slice, content: bytes, leader: str) -> None:
        """Sends a part directly, or else through the leader. The leader passes nothing on to
        itself: its own slices are always sent to it directly.
        """
        is_leader = part.reducer == leader
        if not is_leader and self.is_unreached(part.address):
            await self._forward(plan, part, content)
            return
        try:
            own = self._wire.name
            await push_part(self._wire, self._reducer, plan, part, content, sender=own, attempts=2)
            self._unreached.forgive(part.address)
        except SwarmRefuses as error:
            self._say(f"what was sent did not count: {error.values['reason']}")
        except PEER_ERRORS:
            if not is_leader:
                self._unreached.note_fault(part.address, time.monotonic())
                await self._forward(plan, part, content)

    async def _forward(self, plan: RoundPlan, part: Slice, content: bytes) -> None:
        body = ForwardRequest(round_number=plan.number, reducer=part.reducer)
        try:
            await self._wire.ask(
                self._leader.address,
                "forward",
                body,
                Ack,
                payload=content,
                within_seconds=2 * plan.within_seconds,
            )
        except SwarmRefuses as error:
            self._say(f"what was sent did not count: {error.values['reason']}")
        except PEER_ERRORS:
            self._unreached.forgive(part.address)  # its own link may be down


PATIENCE = 3.0  # a transfer is given up after so many times its expected duration


class RoundMeans:
    """The means of one peer in one session."""

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
                self._wire, self._reducer, plan, part, within_seconds=4 * plan.within_seconds
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
