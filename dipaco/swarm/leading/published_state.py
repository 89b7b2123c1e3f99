"""The group's state as its leader publishes it: one value, and a signal when it changes."""

import asyncio
import contextlib
from typing import Any

import msgspec

from dipaco.swarm.leading.group import SwarmGroup
from dipaco.swarm.network.messages import GroupState
from dipaco.swarm.planning.progress import RefreshSettings, refresh_seconds


class PublishedState:
    """Where the group is.

    Args:
      leader: its name.
      group: whose progress says how often peers should poll.
    """

    def __init__(self, leader: str, group: SwarmGroup, refreshing: RefreshSettings):
        self._group, self._refreshing = group, refreshing
        self._changed = asyncio.Event()
        self.value = GroupState(
            number=0,
            leader=leader,
            origin="",
            step=-1,
            lineage="",
            is_open=False,
            is_over=False,
            plan=None,
            closed=(),
            pinned_step=-1,
            backbones=(),
            revoked=(),
            refresh_seconds=1.0,
        )

    def publish(self, **changes: Any) -> None:
        """Sets fields of the state; peers that poll get it at once."""
        refresh = refresh_seconds(self._group.progress(), self._refreshing)
        fields = {"number": self.value.number + 1, "refresh_seconds": refresh}
        self.value = msgspec.structs.replace(self.value, **(fields | changes))
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_for_change(self, within_seconds: float) -> None:
        await wait_until_set(self._changed, within_seconds)


async def wait_until_set(event: asyncio.Event, within_seconds: float) -> None:
    """Returns when the event is set, or when the time is up."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_seconds):
            await event.wait()
