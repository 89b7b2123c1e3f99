"""Sends a peer's parts of a round to their reducers, directly or, without a connection, through the
leader.
"""

import contextlib
import functools
import time
from collections.abc import Callable

import numpy as np

from dipaco.swarm.errors import SwarmRefuses
from dipaco.swarm.network.leader_connection import LeaderConnection
from dipaco.swarm.network.messages import Ack, RelayRequest, RoundPlan, Slice, UnreachedReport
from dipaco.swarm.network.relay import Relay
from dipaco.swarm.network.wire import PEER_ERRORS, Wire
from dipaco.swarm.training.reducer import Reducer
from dipaco.swarm.training.slices import push_slice

# Waits before an unreached reducer is tried again: the first, doubled each time, and the longest.
FIRST_UNREACHED_SECONDS, UNREACHED_SECONDS = 15.0, 600.0


class PartSender:
    """The sender of one peer in one session.

    Args:
      wire, reducer, leader: parts of the peer.
      say: called with a sentence if a part does not count.
    """

    def __init__(
        self, wire: Wire, reducer: Reducer, leader: LeaderConnection, say: Callable[[str], None]
    ):
        self._wire, self._reducer, self._leader, self._say = wire, reducer, leader, say
        self._unreached: dict[str, float] = {}  # address -> end of the wait
        self._times: dict[str, int] = {}  # address -> how often it was not reached

    def is_unreached(self, address: str) -> bool:
        """True if parts for this address had to go through the leader lately."""
        return time.monotonic() < self._unreached.get(address, 0.0)

    def _note_unreached(self, address: str) -> None:
        """Delays the next try: a little at first, since a newcomer may not be up yet."""
        times = self._times.get(address, 0)
        seconds = min(FIRST_UNREACHED_SECONDS * 2**times, UNREACHED_SECONDS)
        self._times[address] = times + 1
        self._unreached[address] = time.monotonic() + seconds

    async def send(self, plan: RoundPlan, part: Slice, vector: np.ndarray, leader: str) -> None:
        """Sends the part of a slice. If that is impossible, the leader is told. The leader passes
        nothing on to itself: its own slices are always sent to it directly.

        Args:
          vector: float32 [values], the whole sum.
          leader: its session.
        """
        push = functools.partial(
            push_slice,
            self._wire,
            self._reducer,
            plan,
            part,
            vector,
            within_seconds=2 * plan.within_seconds,
            attempts=2,
        )
        is_leader = part.reducer == leader
        try:
            if is_leader or not self.is_unreached(part.address):
                try:
                    await push()
                    self._times.pop(part.address, None)
                    return
                except SwarmRefuses:
                    raise
                except PEER_ERRORS:
                    if is_leader:
                        raise
                    self._note_unreached(part.address)
            request = RelayRequest(round_number=plan.number, reducer=part.reducer)
            await push(through=Relay(self._leader.address, leader, request))
        except SwarmRefuses as error:
            self._say(f"what was sent did not count: {error.values['reason']}")
        except PEER_ERRORS as error:  # the leader holds the round again, without that reducer
            if not isinstance(
                error, ConnectionRefusedError
            ):  # refused by the leader, for a round that ended
                self._unreached.pop(part.address, None)  # its own link may be down
            report = UnreachedReport(round_number=plan.number, reducer=part.reducer)
            with contextlib.suppress(*PEER_ERRORS):
                await self._wire.ask(
                    self._leader.address, "unreached", report, Ack, within_seconds=5.0
                )
