"""Whether a path is its swarm's, or left to plain workers: it is while volunteers are there that
compute.
"""

import math
from collections.abc import Mapping, Set

DESERTED_SECONDS = 60.0  # without a volunteer, after which a path is left to plain workers
# In which there are rows for a volunteer and no block of it comes: to fetch the state and to
# compile takes less over any link that is of use.
IDLE_SECONDS = 1800.0


class Hands:
    """What a backbone has seen of volunteers. Time is any clock in seconds."""

    def __init__(self) -> None:
        self._seen_seconds = -math.inf

    def look(self, num_volunteers: int, now_seconds: float) -> bool:
        """Whether the path is the swarm's now.

        Args:
          num_volunteers: that compute, or wait to.
          now_seconds: of the clock.
        """
        if num_volunteers > 0:
            self._seen_seconds = now_seconds
        return now_seconds - self._seen_seconds <= DESERTED_SECONDS

    def forget(self) -> None:
        """The backbone that leads has left the path to plain workers."""
        self._seen_seconds = -math.inf


class Idle:
    """Volunteers of which no block comes: by session. Time is any clock in seconds."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}  # for which each had rows to compute, and did nothing
        self._looked_seconds = -math.inf
        self._idle: set[str] = set()

    @property
    def sessions(self) -> Set[str]:
        """Those that do not count, until a block of them comes."""
        return self._idle

    def look(self, useful_seconds: Mapping[str, float], has_rows: bool, now_seconds: float) -> None:
        """Looks at the members once more. Time in which a session was no member does not count.

        Args:
          useful_seconds: of each, when a block of it came last, or it asked for rows and there was
            none for it.
          has_rows: whether there are rows to compute.
          now_seconds: of the clock.
        """
        since, self._looked_seconds = self._looked_seconds, now_seconds
        elapsed = now_seconds - since if math.isfinite(since) else 0.0
        for session, useful in useful_seconds.items():
            if useful > since:
                self._seconds[session] = 0.0
                self._idle.discard(session)
            elif has_rows:
                waited = self._seconds[session] = self._seconds.get(session, 0.0) + elapsed
                if waited > IDLE_SECONDS:
                    self._idle.add(session)
