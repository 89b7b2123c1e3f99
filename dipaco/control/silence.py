"""Silence: how long a counter that a process keeps raising has stood still.

No two clocks are compared: a worker raises a counter at every heartbeat, and each process that
watches measures, on its own clock, for how long it has seen the same count. So a wall clock that is
set does nothing, on a client or on a server. A process that has just come has seen nothing yet: it
must look for a whole limit before it may call a counter silent.
"""

from collections.abc import Hashable, Mapping
from typing import NamedTuple, TypeVar

from dipaco.control import clock

Key = TypeVar("Key", bound=Hashable)


class Counter(NamedTuple):
    """A counter as it is now."""

    count: int
    limit_seconds: float  # after which it counts as silent


class Silence:
    """What one process has seen of some counters."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, tuple[int, float]] = {}  # key -> count, silent seconds
        self._looked_seconds = clock.now_seconds()

    def look(self, counters: Mapping[Key, Counter]) -> dict[Key, float]:
        """Counters -> the seconds for which each has stood still, as far as we have seen.

        At most half of its limit is counted between two looks: where nobody could look (the
        database was away, this machine slept), nobody could raise a counter either.

        Args:
          counters: all that are watched; those that are left out are forgotten.
        """
        now = clock.now_seconds()
        passed, self._looked_seconds = now - self._looked_seconds, now
        silent: dict[Key, float] = {}
        for key, (count, limit_seconds) in counters.items():
            before, seconds = self._seen.get(key, (None, 0.0))
            silent[key] = seconds + min(passed, limit_seconds / 2) if count == before else 0.0
        self._seen = {key: (counters[key].count, seconds) for key, seconds in silent.items()}
        return silent

    def over(self, counters: Mapping[Key, Counter]) -> list[Key]:
        """Looks; the counters that have stood still for their limit, in their order."""
        silent = self.look(counters)
        return [key for key, counter in counters.items() if silent[key] >= counter.limit_seconds]
