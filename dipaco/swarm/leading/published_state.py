"""The group's state as its leader publishes it: one value, and a signal when it changes. The means
of past steps, with which peers that are a few steps behind catch up.
"""

from typing import Any

import msgspec

from dipaco.swarm.network.differences import WHOLE, StateUpdate, difference
from dipaco.swarm.network.messages import ClosedStep, GroupState, PastMeanRequest
from dipaco.swarm.network.streams import Signal

KEPT_STATES = 16  # states from which a difference can be sent


class PublishedState:
    """The latest state of the group."""

    def __init__(self, leader: str):
        self.changed = Signal()
        self._past: dict[int, GroupState] = {}  # keyed by number, the newest last
        self._updates: dict[int, StateUpdate] = {}  # keyed by the number of the base
        self.value = GroupState(leader=leader)

    def publish(self, **changes: Any) -> None:
        """Sets fields of the state. Peers that poll get it at once."""
        self._past[self.value.number], self._updates = self.value, {}
        while len(self._past) > KEPT_STATES:
            del self._past[next(iter(self._past))]
        number = self.value.number + 1
        self.value = msgspec.structs.replace(self.value, number=number, **changes)
        self.changed.set()

    def update_for(self, leader: str, number: int) -> StateUpdate:
        """The update for a peer that knows the state with this number by this leader."""
        known = self._past.get(number) if leader == self.value.leader else None
        if (leader, number) == (self.value.leader, self.value.number):
            known = self.value
        base = WHOLE if known is None else number
        if base not in self._updates:  # most peers know the same state
            self._updates[base] = difference(known, self.value)
        return self._updates[base]


KEPT_BYTES = 512 << 20
MAX_STEPS = 16


class PastMeans:
    """The last means in their coded form."""

    def __init__(self, num_values: int):
        self._max_steps = max(1, min(MAX_STEPS, KEPT_BYTES // max(4 * num_values, 1)))
        self._slices: dict[tuple[int, str], list[tuple[int, int, bytes]]] = {}

    def add(self, closed: ClosedStep, contents: list[bytes]) -> None:
        """Adds a step that was taken, with the mean of each of its slices."""
        self._slices[closed.step, closed.before] = [
            (part.start, part.stop, content)
            for part, content in zip(closed.slices, contents, strict=True)
        ]
        while len(self._slices) > self._max_steps:
            del self._slices[next(iter(self._slices))]

    def can_catch_up_from(self, step: int, lineage: str) -> bool:
        """True if a peer at that state finds the mean that it needs next."""
        return (step, lineage) in self._slices

    def find(self, request: PastMeanRequest) -> bytes | None:
        for start, stop, content in self._slices.get((request.step, request.before), []):
            if (start, stop) == (request.start, request.stop):
                return content
        return None
