"""Decides whether a path is left to plain workers.

The path belongs to its swarm while volunteers are present that compute.
"""

import math
from collections.abc import Mapping, Set
from typing import NamedTuple

DESERTED_SECONDS = 60.0  # A path without volunteers is left to plain workers after so long.
# A volunteer is idle if it has rows for so long and finishes no block. Over any useful link,
# fetching the state and compiling take less.
IDLE_SECONDS = 1800.0
MAX_DOUBLINGS = 5  # After so many doublings, an idle volunteer soon counts again while it waits.
FORGET_SECONDS = 86400.0  # A session that has not come back for so long is forgotten.


class VolunteersSeen:
    """When a backbone last saw volunteers. Time is any clock in seconds."""

    def __init__(self) -> None:
        self._seen_seconds = -math.inf

    def look(self, num_volunteers: int, now_seconds: float) -> bool:
        """True if the path belongs to the swarm now.

        Args:
          num_volunteers: volunteers that compute or wait to.
          now_seconds: time on the clock.
        """
        if num_volunteers > 0:
            self._seen_seconds = now_seconds
        return now_seconds - self._seen_seconds <= DESERTED_SECONDS

    def forget(self) -> None:
        """Notes that the leading backbone has left the path to plain workers."""
        self._seen_seconds = -math.inf


def idle_limit_seconds(block_deadline_seconds: float) -> float:
    """Seconds with rows and without a block after which a volunteer does not count.

    Args:
      block_deadline_seconds: deadline of a volunteer that was timed, including the time to fetch a
        mean; 0 = it was not timed.
    """
    return max(IDLE_SECONDS, block_deadline_seconds)


class _Seen(NamedTuple):
    """Facts about a session that does nothing."""

    seconds: float = 0.0  # time in which it had rows to compute
    times: int = 0  # times it was found idle since its last block
    until_seconds: float = -math.inf  # It does not count before this time, even while it waits.


class IdleVolunteers:
    """Volunteers that finish no block, by session. Time is any clock in seconds.

    An idle volunteer does not count until it finishes a block. If there are no rows for it, it gets
    another chance after `IDLE_SECONDS`, then after twice as long: the path may be left to plain
    workers, so that it could not compute a block.
    """

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}
        self._looked_seconds, self._had_rows = -math.inf, False
        self._idle: set[str] = set()

    @property
    def sessions(self) -> Set[str]:
        """The sessions that do not count."""
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
          useful_seconds: for each session, when its last block came, or when it last asked for rows
            that it could compute and there were none.
          has_rows: whether there are rows to compute.
          now_seconds: time on the clock.
          limit_seconds: for each session, the time with rows and without a block after which it is
            idle.
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
        """Notes that it had rows and finished nothing."""
        before = self._seen.get(session, _Seen())
        seconds, times, until = before.seconds + elapsed, before.times, now
        if seconds > limit and session not in self._idle:
            self._idle.add(session)
            times += 1
        if session in self._idle:
            until = now + IDLE_SECONDS * 2.0 ** min(times - 1, MAX_DOUBLINGS)
        self._seen[session] = _Seen(seconds, times, until)

    def _forgive(self, session: str, now: float) -> None:
        """Notes that there are no rows for it."""
        seen = self._seen[session]
        if session in self._idle and now > seen.until_seconds:
            self._idle.discard(session)
            self._seen[session] = seen._replace(seconds=0.0)
        elif now > seen.until_seconds + FORGET_SECONDS:
            del self._seen[session]
