"""The group's state as its leader publishes it: one value, and a signal when it changes."""

import asyncio
import contextlib
from typing import Any

import msgspec

from dipaco.swarm.network.differences import WHOLE, StateUpdate, difference
from dipaco.swarm.network.messages import GroupState

KEPT_STATES = 16  # states from which a difference can be sent


class PublishedState:
    """The latest state of the group.

    Args:
      leader: the leader's name.
    """

    def __init__(self, leader: str):
        self._changed = asyncio.Event()
        self._past: dict[int, GroupState] = {}  # keyed by number, the newest last
        self._updates: dict[int, StateUpdate] = {}  # keyed by the number of the base
        self.value = GroupState(
            number=0,
            leader=leader,
            origin="",
            step=-1,
            lineage="",
            is_open=False,
            end="",
            plan=None,
            closed=(),
            pinned_step=-1,
            backbones=(),
            revoked=(),
        )

    def publish(self, **changes: Any) -> None:
        """Sets fields of the state. Peers that poll get it at once."""
        self._past[self.value.number], self._updates = self.value, {}
        while len(self._past) > KEPT_STATES:
            del self._past[next(iter(self._past))]
        number = self.value.number + 1
        self.value = msgspec.structs.replace(self.value, number=number, **changes)
        self._changed.set()
        self._changed = asyncio.Event()

    def update_for(self, leader: str, number: int) -> StateUpdate:
        """The update for a peer that knows the state with this number by this leader."""
        known = self._past.get(number) if leader == self.value.leader else None
        if (leader, number) == (self.value.leader, self.value.number):
            known = self.value
        base = WHOLE if known is None else number
        if base not in self._updates:  # most peers know the same state
            self._updates[base] = difference(known, self.value)
        return self._updates[base]

    async def wait_for_change(self, within_seconds: float) -> None:
        await wait_until_set(self._changed, within_seconds)


async def wait_until_set(event: asyncio.Event, within_seconds: float) -> None:
    """Returns when the event is set, or when the time is up."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_seconds):
            await event.wait()
