"""Whether a path is its swarm's, or left to plain workers: it is while volunteers are there."""

import math

DESERTED_SECONDS = 60.0  # without a volunteer, after which a path is left to plain workers


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
