"""Whether a path is its swarm's, or left to plain workers: it is while volunteers are there that
compute.
"""

import math
from collections.abc import Mapping, Set
from typing import NamedTuple

DESERTED_SECONDS = 60.0  # without a volunteer, after which a path is left to plain workers
# In which there are rows for a volunteer and no block of it comes: to fetch the state and to
# compile takes less over any link that is of use.
IDLE_SECONDS = 1800.0
MAX_DOUBLINGS = 5  # of these, after which one that was found idle counts again where it waits
FORGET_SECONDS = 86400.0  # after which nothing is known of a session that has not come back


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


def idle_limit_seconds(block_deadline_seconds: float) -> float:
    """With rows and without a block, after which a volunteer does not count.

    Args:
      block_deadline_seconds: of one that was timed, and for how long it fetches a mean; 0 = it was
        not timed.
    """
    return max(IDLE_SECONDS, block_deadline_seconds)


class _Seen(NamedTuple):
    """What is known of a session that does nothing."""

    seconds: float = 0.0  # for which it had rows to compute
    times: int = 0  # that it was found idle, since its last block
    until_seconds: float = -math.inf  # of the clock: it does not count, also where it waits


class Idle:
    """Volunteers of which no block comes: by session. Time is any clock in seconds.

    One that was found idle does not count until a block of it comes. Where there are no rows for
    it, it gets another chance after `IDLE_SECONDS`, then after twice as long: the path may be left
    to plain workers, so that it could not compute a block.
    """

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}
        self._looked_seconds, self._had_rows = -math.inf, False
        self._idle: set[str] = set()

    @property
    def sessions(self) -> Set[str]:
        """Those that do not count."""
        return self._idle

    def look(
        self,
        useful_seconds: Mapping[str, float],
        has_rows: bool,
        now_seconds: float,
        limit_seconds: Mapping[str, float],
    ) -> None:
        """Looks at the members once more. Time in which a session was no member does not count.

        Args:
          useful_seconds: of each, when a block of it came last, or it asked for rows that it could
            compute and there was none for it.
          has_rows: whether there are rows to compute.
          now_seconds: of the clock.
          limit_seconds: of each, with rows and without a block, after which it is idle.
        """
        since, self._looked_seconds = self._looked_seconds, now_seconds
        had_rows, self._had_rows = self._had_rows, has_rows
        elapsed = now_seconds - since if had_rows and has_rows else 0.0
        for session, useful in useful_seconds.items():
            if useful > since:
                self._seen.pop(session, None)
                self._idle.discard(session)
            elif has_rows:
                self._note_nothing(session, elapsed, now_seconds, limit_seconds[session])
        here = useful_seconds.keys() if has_rows else set()
        for session in self._seen.keys() - here:
            self._forgive(session, now_seconds)

    def _note_nothing(self, session: str, elapsed: float, now: float, limit: float) -> None:
        """It had rows, and nothing came."""
        before = self._seen.get(session, _Seen())
        seconds, times, until = before.seconds + elapsed, before.times, now
        if seconds > limit and session not in self._idle:
            self._idle.add(session)
            times += 1
        if session in self._idle:
            until = now + IDLE_SECONDS * 2.0 ** min(times - 1, MAX_DOUBLINGS)
        self._seen[session] = _Seen(seconds, times, until)

    def _forgive(self, session: str, now: float) -> None:
        """There are no rows for it."""
        seen = self._seen[session]
        if session in self._idle and now > seen.until_seconds:
            self._idle.discard(session)
            self._seen[session] = seen._replace(seconds=0.0)
        elif now > seen.until_seconds + FORGET_SECONDS:
            del self._seen[session]
